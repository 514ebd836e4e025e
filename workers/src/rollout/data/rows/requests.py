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

from rollout.data.rows.fields import BadRecord, Turn, read_turns
from rollout.data.rows.lines import BadRequest, body_of, custom_id_of, is_batch_line
from rollout.data.rows.mapping import FieldMapping, map_record
from rollout.data.rows.pooled_requests import EMBED, SCORE, read_pooled
from rollout.types import Row, SamplingParams

CHAT_URL = "/v1/chat/completions"
TEXT_URL = "/v1/completions"
_SHARED = frozenset({"model", "max_tokens", "temperature", "stop", "n"})
BODY_FIELDS = {
    CHAT_URL: _SHARED | {"messages", "max_completion_tokens"},
    TEXT_URL: _SHARED | {"prompt"},
}
"""What is read of a body, by the url of its line."""
STOPS_MAX = 16
TEMPERATURE_MAX = 100.0


NUMBER = "number"
"""Field of a row that says how many rows of the data are before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBounds:
    """What a line may ask for in this run. ``task``: what every row gets, as the API names it."""

    new_tokens_max: int
    num_samples: int
    task: str = "Generate"


def read_request(mapping: FieldMapping, record: Mapping[str, Any], bounds: RequestBounds) -> Row:
    """The row of one line. Raises BadRecord."""
    if bounds.task != "Generate":
        return read_pooled(mapping, record, bounds.task)
    if is_batch_line(record):
        return _read_batch_line(record, bounds)
    mapped = map_record(mapping, record)
    return {"messages": mapped["messages"], "prompt": mapped["prompt"], "record": dict(record)}


def goes_on(row: Row) -> bool:
    """Whether the row's one message is a text without a chat template: to go on with, or to embed."""
    return row.get("url") == TEXT_URL or row.get("pooled") == EMBED


def shows_answer(row: Row) -> bool:
    """Whether the row's conversation ends with its answer, which is scored."""
    return row.get("pooled") == SCORE


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
    custom_id = custom_id_of(record)
    try:
        return _read_body(record, custom_id, bounds)
    except BadRequest as error:
        raise BadRequest(error.code, str(error), custom_id) from error
    except BadRecord as error:
        raise BadRequest("invalid_request", f"body: {error}", custom_id) from error


def _read_body(record: Mapping[str, Any], custom_id: str, bounds: RequestBounds) -> Row:
    body = body_of(record, BODY_FIELDS)
    url = record["url"]
    messages = _messages(body) if url == CHAT_URL else [_text(body)]
    return {
        "messages": messages,
        "prompt": messages[-1]["content"],
        "custom_id": custom_id,
        "url": url,
        "model": body.get("model", ""),
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
