"""What a client asks for: one body, read once, in the fields that a gateway lets through; anything else is refused by name.

A field that an engine would read and that is not named here could reach what is not the client's: another tenant's cache,
a priority, a template of its own. Fields that change nothing here are taken and left out. Pure: bytes in, data out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rollout.inference.gateway.rules.pooling import POOLED_ROUTES, check_pooled
from rollout.inference.gateway.rules.refusals import invalid
from rollout.inference.gateway.rules.responses import (
    RESPONSES,
    RESPONSES_PATH,
    STATEFUL,
    refuse_stateful,
)
from rollout.inference.gateway.table import NAME_CHARACTERS_MAX

COMMON = frozenset(
    {
        *("model", "max_tokens", "temperature", "top_p", "n", "stop", "stream", "stream_options"),
        *("seed", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs"),
        *("response_format", "structured_outputs", "top_k", "min_p", "repetition_penalty"),
        *("min_tokens", "stop_token_ids", "include_stop_str_in_output", "ignore_eos"),
        *("skip_special_tokens", "return_token_ids", "return_tokens_as_token_ids"),
    }
)
CHAT = COMMON | {
    *("messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice"),
    *("parallel_tool_calls", "reasoning_effort", "chat_template_kwargs"),
    *("add_generation_prompt", "continue_final_message"),
}
COMPLETIONS = COMMON | {"prompt", "echo", "suffix", "best_of"}
TOKENIZE = frozenset(
    {
        *("model", "prompt", "messages", "add_special_tokens", "add_generation_prompt"),
        *("continue_final_message", "return_token_strs", "tools", "chat_template_kwargs"),
    }
)
LEFT_OUT = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "verbosity"),
    }
)
"""Taken, and of no effect: hints to OpenAI's own service."""

ROUTES_OF_MODELS: Mapping[str, frozenset[str]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    RESPONSES_PATH: RESPONSES,
    **POOLED_ROUTES,
    "/tokenize": TOKENIZE,
}
"""What is passed on to an engine: path, and the fields of its body."""

LEADS = ("messages", "prompt", "input", "query", "queries", "text_1")
"""Fields that an engine's cache of prefixes could have; the first that there is."""
SAMPLES_MAX = 128
TOKENS_ASKED_MAX = 1 << 20
CHARACTERS_PER_TOKEN = 4
COMPLETION_TOKENS_GUESS = 256
"""What an answer without a limit is taken to cost until its usage is known."""

_STREAMED = frozenset({"/v1/chat/completions", "/v1/completions", RESPONSES_PATH})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, checked. ``fields`` is what to pass on, a JSON object; ``tokens`` is a guess of its cost.

    ``usage_asked``: the client wants the usage event of a stream. ``lead`` is the beginning of its prompt's bytes, by
    which engines with a cache of prefixes are chosen. ``session`` is the same in every request of a conversation: the user that is
    named, or how it began.
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
    allowed = ROUTES_OF_MODELS[path]
    if path == RESPONSES_PATH:
        refuse_stateful(fields)
        fields = {name: value for name, value in fields.items() if name not in STATEFUL}
    for name in fields:
        if name not in allowed and name not in LEFT_OUT:
            shown = name[:80]
            raise invalid(
                f"Unrecognized request argument supplied: {shown}",
                param=shown,
                code="unknown_parameter",
            )
    model = _take_model(fields)
    stream = _flag(fields, "stream")
    if stream and path not in _STREAMED:
        raise invalid(f"{path} does not stream", param="stream", code="unsupported_parameter")
    if path in POOLED_ROUTES:
        check_pooled(path, fields)
    else:
        _require_prompt(path, fields)
    usage_asked = _usage_asked(fields, stream=stream)
    prompt_tokens = max(1, len(body) // CHARACTERS_PER_TOKEN)
    passed = {
        name: value
        for name, value in fields.items()
        if name not in LEFT_OUT and name not in {"model", "stream_options"} and value is not None
    }
    leads = (passed.get(name) for name in LEADS)
    lead = _encode(next((one for one in leads if one is not None), None))
    return Ask(
        path=path,
        model=model,
        fields=_encode(passed),
        stream=stream,
        usage_asked=usage_asked,
        prompt_tokens=prompt_tokens,
        tokens=prompt_tokens + _completion_tokens(path, fields),
        lead=lead,
        session=_session(fields) or lead,
    )


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


def _take_model(fields: Mapping[str, Any]) -> str:
    model = fields.get("model")
    if model is None:
        raise invalid(
            "you must provide a model parameter", param="model", code="missing_required_parameter"
        )
    if not isinstance(model, str) or not 0 < len(model) <= NAME_CHARACTERS_MAX:
        raise invalid("'model' must be the name of a model", param="model", code="invalid_type")
    return model


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if not (value is None or isinstance(value, bool)):
        raise invalid(f"'{name}' must be true or false", param=name, code="invalid_type")
    return bool(value)


def _usage_asked(fields: Mapping[str, Any], *, stream: bool) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not stream:
        raise invalid("'stream_options' needs stream: true", param="stream_options")
    if not isinstance(options, dict) or options.keys() - {"include_usage", "include_obfuscation"}:
        raise invalid("'stream_options' may have include_usage only", param="stream_options")
    return _flag(options, "include_usage")


def _require_prompt(path: str, fields: Mapping[str, Any]) -> None:
    name = {
        "/v1/chat/completions": "messages",
        "/v1/completions": "prompt",
        RESPONSES_PATH: "input",
    }.get(path)
    if name is None:
        return
    value = fields.get(name)
    if value is None:
        raise invalid(
            f"Missing required parameter: '{name}'", param=name, code="missing_required_parameter"
        )
    good = isinstance(value, list) if name == "messages" else isinstance(value, str | list)
    if not good:
        raise invalid(f"Invalid type for '{name}'", param=name, code="invalid_type")
    if value == []:
        raise invalid(f"'{name}' is empty", param=name, code="empty_array")


def _completion_tokens(path: str, fields: Mapping[str, Any]) -> int:
    if path not in _STREAMED:
        return 0
    if path == RESPONSES_PATH:
        return _count(fields, "max_output_tokens", COMPLETION_TOKENS_GUESS, TOKENS_ASKED_MAX)
    samples = _count(fields, "n", 1, SAMPLES_MAX)
    limit = _count(fields, "max_tokens", COMPLETION_TOKENS_GUESS, TOKENS_ASKED_MAX)
    return samples * _count(fields, "max_completion_tokens", limit, TOKENS_ASKED_MAX)


def _count(fields: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(f"'{name}' must be a whole number", param=name, code="invalid_type")
    if not 1 <= value <= most:
        raise invalid(f"'{name}' must be from 1 to {most}", param=name, code="invalid_value")
    return value
