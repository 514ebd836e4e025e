"""Requests for vectors and scores: what their fields must be together, and which model answers which path. Pure.

What each field may be alone is ``fields``' to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout.inference.gateway.rules.refusals import invalid

EMBEDDINGS_PATH = "/v1/embeddings"
CLASSIFY_PATH = "/classify"
SCORE_PATHS = frozenset({"/score", "/v1/score"})
RERANK_PATHS = frozenset({"/rerank", "/v1/rerank", "/v2/rerank"})
"""As vLLM has them; the second and third are what clients of Jina's and Cohere's services ask."""
PAIRS = SCORE_PATHS | RERANK_PATHS
POOLED = {EMBEDDINGS_PATH, CLASSIFY_PATH} | PAIRS

INPUTS_MAX = 2048

_DONE_BY: Mapping[str, frozenset[str]] = {
    "embed": frozenset({EMBEDDINGS_PATH}) | PAIRS,
    "score": frozenset({CLASSIFY_PATH}) | PAIRS,
}
_SAYS = {
    "generate": "text: ask /v1/chat/completions or /v1/completions",
    "embed": "vectors: ask /v1/embeddings, /v1/score or /v1/rerank",
    "score": "scores: ask /v1/score, /v1/rerank or /classify",
}
_ANY = frozenset({"/tokenize"})


def require_route(task: str, name: str, path: str) -> None:
    """Raise ApiRefusal where a model that does ``task`` does not answer this path."""
    done = path not in POOLED if task == "generate" else path in _DONE_BY[task]
    if not done and path not in _ANY:
        message = f"{path} is not answered by {name}, which gives {_SAYS[task]}"
        raise invalid(message, param="model", code="unsupported_route")


def check_pooled(path: str, fields: Mapping[str, Any]) -> None:
    """Raise ApiRefusal for a body that no engine could answer."""
    if path == EMBEDDINGS_PATH:
        _require(fields, "input", _are_inputs, "a text, tokens, or a list of either, none empty")
    elif path == CLASSIFY_PATH:
        _check_classify(fields)
    elif path in RERANK_PATHS:
        _require(fields, "documents", _are_texts, f"a text, or up to {INPUTS_MAX} texts")
    else:
        _check_score(fields)


def _check_classify(fields: Mapping[str, Any]) -> None:
    if fields.get("messages") is None:
        _require(fields, "input", _are_inputs, "a text, tokens, or a list of either, none empty")
    elif fields.get("input") is not None:
        raise invalid("give 'input' or 'messages', not both", param="messages")


def _check_score(fields: Mapping[str, Any]) -> None:
    other = fields.get("text_1") is not None or fields.get("text_2") is not None
    names = ("text_1", "text_2") if other else ("queries", "documents")
    for name in names:
        _require(fields, name, _are_texts, f"a text, or up to {INPUTS_MAX} texts")
    for name in ("queries", "documents") if other else ():
        if fields.get(name) is not None:
            raise invalid(f"give 'text_1' and 'text_2', or '{name}', not both", param=name)
    num_queries, num_documents = (_num(fields[name]) for name in names)
    if num_queries not in {1, num_documents}:
        raise invalid(
            f"'{names[0]}' and '{names[1]}': one and any, or as many of each; got {num_queries} and {num_documents}",
            param=names[0],
            code="invalid_value",
        )


def _require(fields: Mapping[str, Any], name: str, good: Any, expected: str) -> None:
    value = fields.get(name)
    if value is None:
        raise invalid(
            f"Missing required parameter: '{name}'", param=name, code="missing_required_parameter"
        )
    if isinstance(value, list) and len(value) > INPUTS_MAX and not _are_tokens(value):
        raise invalid(
            f"'{name}' has {len(value)} entries; one request may have {INPUTS_MAX}",
            param=name,
            code="array_above_max_length",
        )
    if not good(value):
        raise invalid(f"'{name}' must be {expected}", param=name, code="invalid_type")


def _num(value: Any) -> int:
    return len(value) if isinstance(value, list) else 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: Any) -> bool:
    return _is_text(value) or (
        isinstance(value, list) and bool(value) and all(map(_is_text, value))
    )


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _are_inputs(value: Any) -> bool:
    if _are_texts(value) or _are_tokens(value):
        return True
    return isinstance(value, list) and bool(value) and all(map(_are_tokens, value))
