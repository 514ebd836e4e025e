"""The fields of bodies and what each may hold: one table, by which a body is checked and which the API's description tells.

Types only, and bounds on what a gateway itself counts with: whether an engine can honour a value is the engine's to say. A field
that an engine would read and that is not named here could reach what is not the client's: another tenant's cache, a
priority, a template of its own. Every field may be null, which is as if it were not there. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rollout.inference.gateway.rules.pooling import (
    CLASSIFY_PATH,
    EMBEDDINGS_PATH,
    INPUTS_MAX,
    RERANK_PATHS,
    SCORE_PATHS,
)

NAME_CHARACTERS_MAX = 256
SAMPLES_MAX = 128
TOKENS_ASKED_MAX = 1 << 20
DIMENSIONS_MAX = 1 << 16

Fields = dict[str, Any]
"""Names, and the type of each as msgspec reads it."""

Whole = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Real = Annotated[float, Meta(ge=-1e300, le=1e300)]
Samples = Annotated[int, Meta(ge=1, le=SAMPLES_MAX)]
Tokens = Annotated[int, Meta(ge=1, le=TOKENS_ASKED_MAX)]
Messages = Annotated[list[dict[str, Any]], Meta(min_length=1)]
Prompt = str | Annotated[list[str | Whole | list[Whole]], Meta(min_length=1)]
Text = Annotated[str, Meta(min_length=1)]
Texts = Text | Annotated[list[Text], Meta(min_length=1, max_length=INPUTS_MAX)]
Choice = str | dict[str, Any]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a stream: whether its usage is told at its end."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class AnyFunction(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """A tool of ``/v1/responses``; what else it says is the engine's to read."""


LEFT_OUT: Fields = dict.fromkeys(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "verbosity"),
    ),
    Any,
)
"""Taken, and of no effect: hints to OpenAI's own service."""

_NAME: Fields = {"model": Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]}
_STREAM: Fields = {"stream": bool, "stream_options": StreamOptions}
_SAMPLING: Fields = {
    "temperature": Real,
    "top_p": Real,
    "top_k": Whole,
    "min_p": Real,
    "presence_penalty": Real,
    "frequency_penalty": Real,
}
_TEXT: Fields = (
    _NAME
    | _STREAM
    | _SAMPLING
    | {
        "max_tokens": Tokens,
        "n": Samples,
        "stop": str | list[str],
        "seed": Whole,
        "logit_bias": dict[str, Real],
        "response_format": dict[str, Any],
        "structured_outputs": dict[str, Any],
        "repetition_penalty": Real,
        "min_tokens": Whole,
        "stop_token_ids": list[Whole],
        "include_stop_str_in_output": bool,
        "ignore_eos": bool,
        "skip_special_tokens": bool,
        "return_token_ids": bool,
        "return_tokens_as_token_ids": bool,
    }
)
_TEMPLATE: Fields = {
    "tools": list[dict[str, Any]],
    "chat_template_kwargs": dict[str, Any],
    "add_generation_prompt": bool,
    "continue_final_message": bool,
}
CHAT: Fields = (
    _TEXT
    | _TEMPLATE
    | {
        "messages": Messages,
        "max_completion_tokens": Tokens,
        "logprobs": bool,
        "top_logprobs": Whole,
        "tool_choice": Choice,
        "parallel_tool_calls": bool,
        "reasoning_effort": str,
    }
)
COMPLETIONS: Fields = _TEXT | {
    "prompt": Prompt,
    "logprobs": Whole,
    "echo": bool,
    "suffix": str,
    "best_of": Samples,
}
EMBEDDINGS: Fields = _NAME | {
    "input": Prompt,
    "encoding_format": Literal["float", "base64"],
    "dimensions": Annotated[int, Meta(ge=1, le=DIMENSIONS_MAX)],
}
CLASSIFY: Fields = _NAME | {"input": Prompt, "messages": Messages, "use_activation": bool}
SCORES: Fields = _NAME | {
    **dict.fromkeys(("queries", "documents", "text_1", "text_2"), Texts),
    "use_activation": bool,
}
RERANK: Fields = _NAME | {
    "query": Text,
    "documents": Texts,
    "top_n": Tokens,
    "use_activation": bool,
}
TOKENIZE: Fields = (
    _NAME
    | _TEMPLATE
    | {
        "prompt": str,
        "messages": Messages,
        "add_special_tokens": bool,
        "return_token_strs": bool,
    }
)
RESPONSES: Fields = (
    _NAME
    | _STREAM
    | _SAMPLING
    | {
        "input": str | Annotated[list[dict[str, Any]], Meta(min_length=1)],
        "instructions": str,
        "max_output_tokens": Tokens,
        "top_logprobs": Whole,
        "text": dict[str, Any],
        "tools": list[AnyFunction],
        "tool_choice": Choice,
        "parallel_tool_calls": bool,
        "reasoning": dict[str, Any],
        "include": list[Literal["message.output_text.logprobs"]],
        "truncation": str,
    }
)
STATEFUL: Fields = {
    "previous_response_id": NoneType,
    "conversation": NoneType,
    "background": Annotated[bool, Meta(extra_json_schema={"enum": [False]})],
    "store": Annotated[bool, Meta(extra_json_schema={"enum": [False]})],
    "prompt": NoneType,
}
"""Of ``/v1/responses``: what asks for nothing, which clients write down."""

ROUTES_OF_MODELS: Mapping[str, Fields] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    EMBEDDINGS_PATH: EMBEDDINGS,
    CLASSIFY_PATH: CLASSIFY,
    **dict.fromkeys(sorted(SCORE_PATHS), SCORES),
    **dict.fromkeys(sorted(RERANK_PATHS), RERANK),
    "/tokenize": TOKENIZE,
}
"""What is passed on to an engine: path, and the fields of its body."""

STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""Paths whose answers may be streams."""

BATCHED = (
    *("/v1/chat/completions", "/v1/completions"),
    *("/v1/embeddings", "/v1/score", "/v1/rerank"),
)
"""What a line of a batch may ask."""

PROMPTS: Mapping[str, str] = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    EMBEDDINGS_PATH: "input",
    **dict.fromkeys(sorted(RERANK_PATHS), "query"),
    "/v1/responses": "input",
}
"""The field that must be there, beside the model's name."""


FIELDS: Mapping[str, Fields] = {
    path: LEFT_OUT | fields | (STATEFUL if path == "/v1/responses" else {})
    for path, fields in ROUTES_OF_MODELS.items()
}
"""All that a body of a path may name."""

_UNHEARD = frozenset(
    {"structured_outputs", "include_stop_str_in_output", "return_tokens_as_token_ids"}
)
UNHEARD: Mapping[str, Mapping[str, frozenset[str]]] = {
    "sglang": {
        "/v1/chat/completions": _UNHEARD | {"add_generation_prompt"},
        "/v1/completions": _UNHEARD | {"best_of", "suffix"},
        "/tokenize": frozenset({"return_token_strs"}),
    }
}
"""By an engine that does not answer all there is: the paths that it answers, and of each the fields that it takes and does not heed."""

BODIES: Mapping[str, Any] = {
    path: msgspec.defstruct("Body", [(name, one | None, None) for name, one in fields.items()])
    for path, fields in FIELDS.items()
}
"""The same as one type, for one look at a whole body."""
