"""Lines of a batch that is embedded or scored: a text, or a question with its answer; nothing is sampled. Pure.

A row holds what a line of a batch that is completed does (``requests``) and ``pooled``: ``embed``, then its one message is a
text as the tokenizer takes it, or ``score``, then its messages are a conversation that ends with the answer. What a line
asks for beside that is refused by name.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollout.data.rows.fields import BadRecord, Turn, kind
from rollout.data.rows.lines import BadRequest, body_of, custom_id_of, is_batch_line
from rollout.data.rows.mapping import FieldMapping, map_record
from rollout.types import Row

EMBED_URL, SCORE_URL = "/v1/embeddings", "/v1/score"
EMBED, SCORE = "embed", "score"
_FIELDS = {
    EMBED_URL: frozenset({"model", "input", "encoding_format"}),
    SCORE_URL: frozenset({"model", "queries", "documents", "text_1", "text_2"}),
}
"""What is read of a body, by the url of its line."""
NOTHING_SAMPLED = {"max_new_tokens": 0}


def read_pooled(mapping: FieldMapping, record: Mapping[str, Any], task: str) -> Row:
    """The row of one line of a run with this task (``Embed``, ``Score``). Raises BadRecord."""
    if is_batch_line(record):
        return _read_line(record, EMBED_URL if task == "Embed" else SCORE_URL)
    if task == "Embed":
        text = map_record(mapping, record)["prompt"]
        return _row(record, [{"role": "user", "content": text}], EMBED)
    mapped = map_record(replace(mapping, target="answer"), record)
    answer: Turn = {"role": "assistant", "content": mapped["answer"]}
    return _row(record, [*mapped["messages"], answer], SCORE)


def pack_numbers(numbers: Sequence[float]) -> str:
    """A vector or a score as the text of its row's answer: base64 of little-endian float32, as OpenAI's API has it."""
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def unpack_numbers(text: str) -> list[float]:
    """The numbers in the text of an answer."""
    packed = base64.b64decode(text)
    return list(struct.unpack(f"<{len(packed) // 4}f", packed))


def _row(record: Mapping[str, Any], messages: list[Turn], pooled: str) -> dict[str, Any]:
    return {
        "messages": messages,
        "prompt": messages[-1]["content"],
        "pooled": pooled,
        "sampling": NOTHING_SAMPLED,
        "record": dict(record),
    }


def _read_line(record: Mapping[str, Any], url: str) -> Row:
    custom_id = custom_id_of(record)
    try:
        body = body_of(record, {url: _FIELDS[url]})
        if url == EMBED_URL:
            row = _row(record, [{"role": "user", "content": _one_text(body, "input")}], EMBED)
        else:
            row = _row(record, _pair(body), SCORE)
        encoding = _encoding(body)
    except BadRequest as error:
        raise BadRequest(error.code, str(error), custom_id) from error
    except BadRecord as error:
        raise BadRequest("invalid_request", f"body: {error}", custom_id) from error
    own = {"custom_id": custom_id, "url": url, "model": body.get("model", "")}
    return {**row, **own, "encoding": encoding}


def _encoding(body: Mapping[str, Any]) -> str:
    found = body.get("encoding_format") or "float"
    if found in ("float", "base64"):
        return found
    message = f"body.encoding_format: expected float or base64, got {found!r:.40}"
    raise BadRequest("invalid_request", message)


def _pair(body: Mapping[str, Any]) -> list[Turn]:
    names = ("text_1", "text_2") if "text_1" in body else ("queries", "documents")
    query, document = (_one_text(body, name) for name in names)
    return [{"role": "user", "content": query}, {"role": "assistant", "content": document}]


def _one_text(body: Mapping[str, Any], name: str) -> str:
    """A text; one in a list of its own, too."""
    found = body.get(name)
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], str):
        found = found[0]
    if isinstance(found, list):
        raise BadRequest(
            "unsupported_parameter",
            f"body.{name}: expected one text; several texts or token ids are not supported in a run: write a line"
            " for each text",
        )
    if not isinstance(found, str) or not found:
        raise BadRequest("invalid_request", f"body.{name}: expected text, got {kind(found)}")
    return found
