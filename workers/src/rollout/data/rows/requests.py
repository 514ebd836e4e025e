"""Lines of a batch: prompts, chat messages, or OpenAI batch lines with settings of their own. Pure.

A row holds ``messages`` (what the policy is shown), ``record`` (the line as written) and, of an OpenAI line,
``custom_id``, ``url`` and ``sampling`` (what its body says of it). The one message of a line of ``/v1/completions`` is
the text to go on with. What this version cannot honour is refused by name: a line that asks for a tool and is answered
without one would be a wrong answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollout.data.rows.fields import BadRecord, Turn, kind, read_turns
from rollout.data.rows.mapping import FieldMapping, map_record
from rollout.types import Row, SamplingParams

CUSTOM_ID_CHARACTERS_MAX = 512
CHAT_URL = "/v1/chat/completions"
LINE_FIELDS = frozenset({"custom_id", "method", "url", "body"})
TEXT_URL = "/v1/completions"
_SHARED = frozenset({"model", "max_tokens", "temperature", "stop", "n"})
BODY_FIELDS = {
    CHAT_URL: _SHARED | {"messages", "max_completion_tokens"},
    TEXT_URL: _SHARED | {"prompt"},
}
"""What is read of a body, by the url of its line."""
PASSED_OVER = frozenset({"user", "metadata", "store", "service_tier"})
"""Fields of a body that change no token of its answer."""
STOPS_MAX = 16
TEMPERATURE_MAX = 100.0


NUMBER = "number"
"""Field of a row that says how many rows of the data are before it."""


class BadRequest(BadRecord):
    """A line that is JSON and still no request; ``code`` is what the error file says."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.custom_id = custom_id


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBounds:
    """What a line may ask for in this run."""

    new_tokens_max: int
    num_samples: int


def is_batch_line(record: Mapping[str, Any]) -> bool:
    """Whether a record is a line of OpenAI's batch format."""
    return "custom_id" in record and "body" in record


def read_request(mapping: FieldMapping, record: Mapping[str, Any], bounds: RequestBounds) -> Row:
    """The row of one line. Raises BadRecord."""
    if is_batch_line(record):
        return _read_batch_line(record, bounds)
    mapped = map_record(mapping, record)
    return {"messages": mapped["messages"], "prompt": mapped["prompt"], "record": dict(record)}


def goes_on(row: Row) -> bool:
    """Whether the row's one message is a text to go on with, without a chat template."""
    return row.get("url") == TEXT_URL


def row_sampling(row: Row, base: SamplingParams) -> SamplingParams:
    """How this row is sampled: as the run says, where its line says nothing else."""
    asked = row.get("sampling")
    if not asked:
        return base
    return replace(
        base,
        max_new_tokens=asked.get("max_new_tokens", base.max_new_tokens),
        temperature=asked.get("temperature", base.temperature),
        stop=tuple(asked.get("stop", base.stop)),
    )


def _read_batch_line(record: Mapping[str, Any], bounds: RequestBounds) -> Row:
    custom_id = _custom_id(record)
    try:
        return _read_body(record, custom_id, bounds)
    except BadRequest as error:
        raise BadRequest(error.code, str(error), custom_id) from error
    except BadRecord as error:
        raise BadRequest("invalid_request", f"body: {error}", custom_id) from error


def _custom_id(record: Mapping[str, Any]) -> str:
    found = record["custom_id"]
    if not isinstance(found, str) or not 1 <= len(found) <= CUSTOM_ID_CHARACTERS_MAX:
        raise BadRequest(
            "invalid_custom_id",
            f"custom_id: expected text of 1 to {CUSTOM_ID_CHARACTERS_MAX} characters, got {found!r:.40}",
        )
    return found


def _read_body(record: Mapping[str, Any], custom_id: str, bounds: RequestBounds) -> Row:
    if unknown := sorted(record.keys() - LINE_FIELDS):
        raise BadRequest("invalid_request", f"{unknown[0]}: no field of a batch line")
    if record.get("method", "POST") != "POST":
        raise BadRequest("invalid_method", f"method: expected POST, got {record['method']!r:.40}")
    url = record.get("url")
    if not isinstance(url, str) or url not in BODY_FIELDS:
        raise BadRequest(
            "invalid_url",
            f"url: expected {' or '.join(BODY_FIELDS)}, got {url!r:.80}; this version answers no other",
        )
    body = record["body"]
    if not isinstance(body, Mapping):
        raise BadRequest("invalid_request", f"body: expected an object, got {kind(body)}")
    if unknown := sorted(body.keys() - BODY_FIELDS[url] - PASSED_OVER):
        raise BadRequest(
            "unsupported_parameter",
            f"body.{unknown[0]} is not supported by this version: remove it",
        )
    model = body.get("model", "")
    if not isinstance(model, str):
        raise BadRequest("invalid_request", f"body.model: expected text, got {kind(model)}")
    messages = _messages(body) if url == CHAT_URL else [_text(body)]
    return {
        "messages": messages,
        "prompt": messages[-1]["content"],
        "custom_id": custom_id,
        "url": url,
        "model": model,
        "sampling": _sampling(body, bounds),
        "record": dict(record),
    }


def _messages(body: Mapping[str, Any]) -> list[Turn]:
    messages = read_turns(body, "messages")
    if messages[-1]["role"] == "assistant":
        raise BadRequest(
            "invalid_request", "body.messages: ends with the assistant: nothing to answer"
        )
    return messages


def _text(body: Mapping[str, Any]) -> Turn:
    """The text to go on with; one in a list of its own, too."""
    found = body.get("prompt")
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], str):
        found = found[0]
    if isinstance(found, list):
        raise BadRequest(
            "unsupported_parameter",
            "body.prompt: expected one text; several texts or token ids are not supported by this version:"
            " write a line for each text",
        )
    if not isinstance(found, str) or not found:
        raise BadRequest("invalid_request", f"body.prompt: expected text, got {found!r:.40}")
    return {"role": "user", "content": found}


def _sampling(body: Mapping[str, Any], bounds: RequestBounds) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None:
            found["max_new_tokens"] = _tokens(body[name], name, bounds.new_tokens_max)
    if body.get("temperature") is not None:
        found["temperature"] = _temperature(body["temperature"])
    if body.get("stop") is not None:
        found["stop"] = _stops(body["stop"])
    wanted = body.get("n")
    if wanted is not None and (isinstance(wanted, bool) or wanted != bounds.num_samples):
        raise BadRequest(
            "unsupported_parameter",
            f"body.n: {wanted!r:.20}, this run draws {bounds.num_samples} of each"
            " (infer.samplesPerPrompt)",
        )
    return found


def _tokens(value: Any, name: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadRequest("invalid_request", f"body.{name}: expected 1 or more, got {value!r:.40}")
    if value > most:
        raise BadRequest(
            "invalid_request",
            f"body.{name}: {value} is above the {most} of infer.sampling.maxNewTokens: raise that",
        )
    return value


def _temperature(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value <= TEMPERATURE_MAX:
        raise BadRequest(
            "invalid_request",
            f"body.temperature: expected 0 to {TEMPERATURE_MAX:g}, got {value!r:.40}",
        )
    return float(value)


def _stops(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > STOPS_MAX:
        raise BadRequest("invalid_request", f"body.stop: expected at most {STOPS_MAX} texts")
    if any(not isinstance(one, str) or not 1 <= len(one) <= 256 for one in stops):
        raise BadRequest("invalid_request", "body.stop: expected texts of 1 to 256 characters")
    return stops
