"""Refusals as OpenAI's clients read them: a status, four fields, and when to come again.

Both SDKs of OpenAI retry 408, 409, 429 and from 500 on, and heed ``Retry-After`` between 1 and 60 s only: a lasting
state is never a 409, and no answer says to wait longer. What an engine answers is put into the same four fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

RETRY_AFTER_MIN, RETRY_AFTER_MAX = 1, 60
MESSAGE_CHARACTERS_MAX = 2000

TYPES = {
    401: "invalid_request_error",
    403: "permission_error",
    404: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_exceeded",
}
"""Word of each status in ``type``; else ``invalid_request_error`` below 500 and ``server_error`` from there."""


@dataclass(slots=True, eq=False)
class ApiRefusal(Exception):  # noqa: N818 - an answer, not a fault
    """What a client is told instead of an answer. ``reason`` is ours, for metrics; empty: not of our making."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        return self.message

    @property
    def body(self) -> bytes:
        """The four fields, as JSON."""
        return msgspec.json.encode({"error": self.fields})

    @property
    def fields(self) -> dict[str, Any]:
        """``message``, ``type``, ``param``, ``code``."""
        default = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "message": self.message[:MESSAGE_CHARACTERS_MAX],
            "type": TYPES.get(self.status, default),
            "param": self.param,
            "code": self.code,
        }

    @property
    def event(self) -> bytes:
        """As an event inside a stream, and the stream's end: some clients wait for that."""
        return b"data: " + self.body + b"\n\ndata: [DONE]\n\n"

    @property
    def headers(self) -> dict[str, str]:
        """``Retry-After`` where there is something to wait for, within what clients heed."""
        if self.retry_after is None:
            return {}
        seconds = min(max(self.retry_after, RETRY_AFTER_MIN), RETRY_AFTER_MAX)
        return {"Retry-After": str(round(seconds))}


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> ApiRefusal:
    """A request that will never be answered as it is: 400."""
    return ApiRefusal(400, message, code=code, param=param, reason="invalid")


def missing(name: str) -> ApiRefusal:
    """A body without a field that must be there."""
    message = f"Missing required parameter: '{name}'"
    return invalid(message, param=name, code="missing_required_parameter")


def unavailable(message: str, *, reason: str, retry_after: float = 2) -> ApiRefusal:
    """Not now, and no fault of the request: 503."""
    return ApiRefusal(503, message, code=reason, retry_after=retry_after, reason=reason)


class _EngineError(msgspec.Struct):
    message: str = ""
    param: Any = None
    code: Any = None


class _EngineAnswer(msgspec.Struct):
    error: Any = None
    message: str = ""
    detail: Any = None


def engine_refusal(status: int, body: bytes) -> ApiRefusal:
    """An engine's refusal of a request, in OpenAI's fields. Of an engine's own faults nothing but the status is told."""
    if status == 503:
        return unavailable("the engine is full; try again", reason="engine_full", retry_after=1)
    if status in {404, 405}:
        message = "the engine of this model does not answer this path"
        return ApiRefusal(400, message, code="unsupported_route", reason="engine_refused")
    if status >= 500 or status in {401, 403}:
        return ApiRefusal(
            502, f"the engine answered {status}", code="engine_error", reason="engine"
        )
    said = _read_error(body)
    param = said.param if isinstance(said.param, str) else None
    code = said.code if isinstance(said.code, str) else None
    message = said.message or "the engine refused the request"
    if code is None and "maximum context length" in message:
        code = "context_length_exceeded"
    return ApiRefusal(status, message, code=code, param=param, reason="engine_refused")


def engine_event(data: bytes) -> ApiRefusal:
    """An error that an engine sent inside a stream, in OpenAI's fields."""
    said = _read_error(data)
    return ApiRefusal(
        500, said.message or "the engine failed", code="engine_error", reason="engine"
    )


def _read_error(body: bytes) -> _EngineError:
    try:
        answer = msgspec.json.decode(body, type=_EngineAnswer)
        if isinstance(answer.error, dict):
            return msgspec.convert(answer.error, _EngineError)
    except (msgspec.MsgspecError, RecursionError):
        return _EngineError()
    return _EngineError(message=answer.message)
