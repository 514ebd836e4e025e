"""What a client asks for: one body, read once, in the fields that a gateway lets through; anything else is refused by name.

Which fields there are, and what each may hold, is ``fields``' to say; those that change nothing here are taken and left out. Pure: bytes
in, data out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rollout.inference.gateway.rules.fields import (
    BODIES,
    FIELDS,
    LEFT_OUT,
    PROMPTS,
    STATEFUL,
    STREAMED,
    UNHEARD,
)
from rollout.inference.gateway.rules.pooling import POOLED, check_pooled
from rollout.inference.gateway.rules.refusals import invalid, missing
from rollout.inference.gateway.rules.responses import RESPONSES_PATH, refuse_stateful

LEADS = ("messages", "prompt", "input", "query", "queries", "text_1")
"""Fields that an engine's cache of prefixes could have; the first that there is."""
CHARACTERS_PER_TOKEN = 4
COMPLETION_TOKENS_GUESS = 256
"""What an answer without a limit is taken to cost until its usage is known."""

_OURS = frozenset({*LEFT_OUT, *STATEFUL, "model", "stream_options"}) - {"prompt"}
"""Not passed on as it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, checked. ``fields`` is what to pass on, a JSON object; ``tokens`` is a guess of its cost.

    ``usage_asked``: the client wants the usage event of a stream. ``lead`` is the beginning of its prompt's bytes, by
    which engines with a cache of prefixes are chosen. ``session`` is the same in every request of a conversation: the user that is
    named, or how it began. ``names``: of the fields that are passed on.
    """

    path: str
    model: str
    fields: bytes
    stream: bool
    usage_asked: bool
    prompt_tokens: int
    tokens: int
    lead: bytes
    session: bytes = b""
    names: frozenset[str] = frozenset()

    def encode(self, model: str, salt: str | None) -> bytes:
        """The body for an engine. A stream always ends with its usage, so that it can be counted."""
        ours: dict[str, Any] = {"model": model}
        if self.path == RESPONSES_PATH:
            ours["store"] = False
        elif self.stream:
            ours["stream_options"] = {"include_usage": True}
        if salt is not None:
            ours["cache_salt"] = salt
        head = msgspec.json.encode(ours)
        return head if self.fields == b"{}" else head[:-1] + b"," + self.fields[1:]


def read_ask(path: str, body: bytes) -> Ask:
    """Read and check a body. Raises ApiRefusal."""
    fields = _decode(body)
    if path == RESPONSES_PATH:
        refuse_stateful(fields)
    if fields.get("stream") and path not in STREAMED:
        raise invalid(f"{path} does not stream", param="stream", code="unsupported_parameter")
    fields = _check(path, fields)
    if path in POOLED:
        check_pooled(path, fields)
    stream = bool(fields.get("stream"))
    usage_asked = _usage_asked(fields, stream=stream)
    prompt_tokens = max(1, len(body) // CHARACTERS_PER_TOKEN)
    passed = {name: value for name, value in fields.items() if name not in _OURS}
    lead = _encode(next((passed[name] for name in LEADS if name in passed), None))
    return Ask(
        path=path,
        model=fields["model"],
        fields=_encode(passed),
        stream=stream,
        usage_asked=usage_asked,
        prompt_tokens=prompt_tokens,
        tokens=prompt_tokens + _completion_tokens(path, fields),
        lead=lead,
        session=_session(fields) or lead,
        names=frozenset(passed),
    )


def require_heard(engine: str, ask: Ask) -> None:
    """Raise ApiRefusal for a path that an engine does not answer, and for a field that it would take and not heed."""
    paths = UNHEARD.get(engine)
    if paths is None:
        return
    if ask.path not in paths:
        message = f"{ask.path} is not answered by {engine}, which serves {ask.model}"
        raise invalid(message, param="model", code="unsupported_route")
    for name in sorted(ask.names & paths[ask.path]):
        message = f"'{name}' is not heeded by {engine}, which serves {ask.model}: leave it out"
        raise invalid(message, param=name, code="unsupported_parameter")


def _session(fields: Mapping[str, Any]) -> bytes:
    """The user that a client names, else a chat up to the first thing that its user said; empty: the prompt itself."""
    for name in ("user", "prompt_cache_key", "safety_identifier"):
        if isinstance(fields.get(name), str) and fields[name]:
            return f"{name}={fields[name]}".encode()
    given = fields.get("messages")
    messages = given if isinstance(given, list) else []
    for place, one in enumerate(messages):
        if isinstance(one, dict) and one.get("role") == "user":
            return _encode(messages[: place + 1])
    return b""


def decode_object(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises ApiRefusal for anything else, for bytes that are no UTF-8 and for depth without end."""
    return _decode(body)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        body.decode()
        fields = msgspec.json.decode(body)
    except UnicodeDecodeError as error:
        raise invalid("the body is not UTF-8", code="invalid_json") from error
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"We could not parse the JSON body of your request: {str(error)[:200]}"
        raise invalid(message, code="invalid_json") from error
    if not isinstance(fields, dict):
        raise invalid("the body must be a JSON object", code="invalid_json")
    return fields


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise invalid("the body has a number that is too large", code="invalid_json") from error


def _check(path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say something, each of its type. Raises ApiRefusal, by a field's name."""
    allowed = FIELDS[path]
    for name in fields:
        if name not in allowed:
            shown = name[:80]
            message = f"Unrecognized request argument supplied: {shown}"
            raise invalid(message, param=shown, code="unknown_parameter")
    found = {name: value for name, value in fields.items() if value is not None}
    for name in ("model", PROMPTS.get(path, "model")):
        if name not in found:
            raise missing(name)
    try:
        msgspec.convert(found, BODIES[path])
    except (msgspec.ValidationError, RecursionError):
        return {name: _take(name, value, allowed[name]) for name, value in found.items()}
    return found


def _take(name: str, value: Any, wanted: Any) -> Any:
    """A value of the type that is wanted: as it is, or with ``2.0`` as 2, which are one number in JSON. Raises ApiRefusal."""
    if value == [] and name in PROMPTS.values():
        raise invalid(f"'{name}' is empty", param=name, code="empty_array")
    try:
        msgspec.convert(value, wanted)
    except (msgspec.ValidationError, RecursionError) as error:
        whole = _with_whole_numbers(value)
        if _fits(whole, wanted):
            return whole
        said = str(error)[:200]
        code = "invalid_type" if "got `" in said else "invalid_value"
        raise invalid(f"Invalid value for '{name}': {said}", param=name, code=code) from error
    return value


def _fits(value: Any, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True


def _with_whole_numbers(value: Any, depth: int = 2) -> Any:
    """Of a number, and of those in lists of lists: no field has whole numbers deeper."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list) and depth:
        return [_with_whole_numbers(one, depth - 1) for one in value]
    return value


def _usage_asked(fields: Mapping[str, Any], *, stream: bool) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not stream:
        raise invalid("'stream_options' needs stream: true", param="stream_options")
    return bool(options.get("include_usage"))


def _completion_tokens(path: str, fields: Mapping[str, Any]) -> int:
    if path not in STREAMED:
        return 0
    if path == RESPONSES_PATH:
        return fields.get("max_output_tokens", COMPLETION_TOKENS_GUESS)
    limit = fields.get("max_tokens", COMPLETION_TOKENS_GUESS)
    return fields.get("n", 1) * fields.get("max_completion_tokens", limit)
