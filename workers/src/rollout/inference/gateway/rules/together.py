"""What the fields of a body must be together, as JSON Schema says it: beside ``fields``, what the API's description tells. Pure.

``asks`` and ``pooling`` refuse by these rules, in words. One of them no schema can say, that two lists are equally long: it stands in the
description's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout.inference.gateway.rules.fields import STREAMED
from rollout.inference.gateway.rules.pooling import (
    CLASSIFY_PATH,
    EMBEDDINGS_PATH,
    INPUTS_MAX,
    RERANK_PATHS,
    SCORE_PATHS,
)

Document = dict[str, Any]

_NULL: Document = {"type": "null"}
_TOKENS: Document = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1},
}
_TEXT: Document = {"type": "string", "minLength": 1}


def _list_of(items: Document) -> Document:
    return {"type": "array", "minItems": 1, "maxItems": INPUTS_MAX, "items": items}


_INPUT: Document = {"anyOf": [_TEXT, _list_of(_TEXT), _TOKENS, _list_of(_TOKENS)]}
_TEXTS: Document = {"anyOf": [_TEXT, _list_of(_TEXT)]}
_MESSAGES: Document = {"type": "array", "minItems": 1, "items": {"type": "object"}}


def _either(*kinds: tuple[Mapping[str, Document], tuple[str, ...]]) -> Document:
    """A body has all fields of one kind, and of the others' none that says anything."""
    return {
        "anyOf": [
            {
                "required": list(wanted),
                "properties": {**wanted, **dict.fromkeys(unwanted, _NULL)},
            }
            for wanted, unwanted in kinds
        ]
    }


_OPTIONS_OF_A_STREAM: Document = {
    "anyOf": [
        {"properties": {"stream_options": _NULL}},
        {"properties": {"stream": {"const": True}}, "required": ["stream"]},
    ]
}
_QUERIES, _TEXTS_1 = ("queries", "documents"), ("text_1", "text_2")
_PAIRS: Document = {
    "description": "One query and any number of documents, or as many of each.",
    **_either(
        (dict.fromkeys(_QUERIES, _TEXTS), _TEXTS_1),
        (dict.fromkeys(_TEXTS_1, _TEXTS), _QUERIES),
    ),
}
_DOCUMENTS: Document = {"required": ["documents"], "properties": {"documents": _TEXTS}}

TOGETHER: Mapping[str, Document] = {
    **dict.fromkeys(STREAMED, _OPTIONS_OF_A_STREAM),
    EMBEDDINGS_PATH: {"properties": {"input": _INPUT}},
    CLASSIFY_PATH: _either(
        ({"input": _INPUT}, ("messages",)), ({"messages": _MESSAGES}, ("input",))
    ),
    **dict.fromkeys(sorted(SCORE_PATHS), _PAIRS),
    **dict.fromkeys(sorted(RERANK_PATHS), _DOCUMENTS),
}
"""By path; each is to hold beside what the fields are alone."""
