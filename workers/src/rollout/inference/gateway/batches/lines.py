"""Lines of a batch: what is asked for in one, and the line that answers it. Pure.

The number of a line is in the id of its answer, so that a file of answers says by itself which lines it has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from rollout.inference.gateway.batches.objects import LineError
from rollout.inference.gateway.rules.refusals import ApiRefusal

LINES_MAX = 50_000
CUSTOM_ID_CHARACTERS_MAX = 512
LINE_BYTES_OVER_BODY = 4096
"""What a line may have around its body."""
_ANSWER_ROW = re.compile(rb'\{"id":"batch_req_[0-9a-f]{16}_([0-9]{8})"')


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw(b"")


class _Model(msgspec.Struct):
    model: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """One line that is a request. ``row`` counts from 0; ``body`` is JSON, and not looked into yet but for its model."""

    row: int
    custom_id: str
    model: str
    body: bytes


def parse_line(data: bytes, row: int, endpoint: str) -> BatchLine | LineError:
    """Read one line, without its end."""
    found = _decode(data)
    if found is None:
        return _bad(
            row,
            "invalid_json_line",
            "expected a JSON object in UTF-8 with custom_id, method, url and body",
        )
    line, model = found
    good = isinstance(line.custom_id, str) and 0 < len(line.custom_id) <= CUSTOM_ID_CHARACTERS_MAX
    if not good:
        most = f"a text of 1 to {CUSTOM_ID_CHARACTERS_MAX} characters"
        return _bad(row, "invalid_custom_id", f"expected {most}", "custom_id")
    if line.method != "POST":
        return _bad(row, "invalid_method", "expected POST", "method")
    if line.url != endpoint:
        return _bad(row, "mismatched_url", f"expected the batch's endpoint, {endpoint}", "url")
    if model is None:
        return _bad(row, "invalid_body", "expected an object with a model", "body")
    return BatchLine(row=row, custom_id=line.custom_id, model=model, body=bytes(line.body))


def render_answer(
    batch_id: str, line: BatchLine, status: int, request_id: str, body: bytes
) -> bytes:
    """The line of an answer, refusals of an engine too. Raises ValueError where ``body`` is no JSON."""
    body = bytes(msgspec.json.decode(body, type=msgspec.Raw))
    if b"\n" in body or b"\r" in body:
        body = msgspec.json.encode(msgspec.json.decode(body))
    response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
    return _render(batch_id, line.row, line.custom_id, response, None)


def render_refusal(batch_id: str, line: BatchLine, request_id: str, refusal: ApiRefusal) -> bytes:
    """The line of a request that was refused."""
    return render_answer(batch_id, line, refusal.status, request_id, refusal.body)


def render_unanswered(batch_id: str, line: BatchLine, code: str, message: str) -> bytes:
    """The line of a request that was not answered at all."""
    return _render(batch_id, line.row, line.custom_id, None, {"code": code, "message": message})


def row_of(answer: bytes) -> int | None:
    """Which line a line of ours answers; None for one that is cut off."""
    found = _ANSWER_ROW.match(answer)
    return int(found[1]) if found is not None and answer.endswith(b"}\n") else None


def _render(batch_id: str, row: int, custom_id: str, response: Any, error: Any) -> bytes:
    told = {
        "id": f"batch_req_{batch_id[6:22]}_{row:08d}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(told) + b"\n"


def _decode(data: bytes) -> tuple[_Line, str | None] | None:
    """The line and the model in its body; None for what is no line, and no model for what is no body."""
    try:
        data.decode()
        line = msgspec.json.decode(data, type=_Line)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return None
    try:
        model = msgspec.json.decode(line.body, type=_Model).model
    except (msgspec.MsgspecError, RecursionError):
        return line, None
    return line, model if isinstance(model, str) else None


def _bad(row: int, code: str, message: str, param: str | None = None) -> LineError:
    return LineError(code=code, message=message, line=row + 1, param=param)
