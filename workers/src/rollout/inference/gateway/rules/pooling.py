"""Requests for vectors and scores: what their fields must be together, and which model answers which path. Pure.

What each field may be alone is ``fields``' to say; ``together`` has the same rules as ``fields`` and this module, in words of JSON Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout.inference.gateway.rules.refusals import invalid, missing

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
    """Raise ApiRefusal for a body that no engine could answer; each field is of its type."""
    if path == EMBEDDINGS_PATH:
        _check_input(fields)
    elif path == CLASSIFY_PATH:
        _check_classify(fields)
    elif path in RERANK_PATHS:
        _require(fields, "documents")
    else:
        _check_score(fields)


def _check_classify(fields: Mapping[str, Any]) -> None:
    if "messages" not in fields:
        _check_input(fields)
    elif "input" in fields:
        raise invalid("give 'input' or 'messages', not both", param="messages")


def _check_score(fields: Mapping[str, Any]) -> None:
    other = "text_1" in fields or "text_2" in fields
    names = ("text_1", "text_2") if other else ("queries", "documents")
    for name in names:
        _require(fields, name)
    for name in ("queries", "documents") if other else ():
        if name in fields:
            raise invalid(f"give 'text_1' and 'text_2', or '{name}', not both", param=name)
    num_queries, num_documents = (_num(fields[name]) for name in names)
    if num_queries not in {1, num_documents}:
        raise invalid(
            f"'{names[0]}' and '{names[1]}': one and any, or as many of each; got {num_queries} and {num_documents}",
            param=names[0],
            code="invalid_value",
        )


def _require(fields: Mapping[str, Any], name: str) -> None:
    if name not in fields:
        raise missing(name)


def _check_input(fields: Mapping[str, Any]) -> None:
    """A text, tokens, or a list of either: not of both, none empty."""
    _require(fields, "input")
    given = fields["input"]
    if isinstance(given, list) and len(given) > INPUTS_MAX and not _are_tokens(given):
        raise invalid(
            f"'input' has {len(given)} entries; one request may have {INPUTS_MAX}",
            param="input",
            code="array_above_max_length",
        )
    entries = given if isinstance(given, list) and not _are_tokens(given) else [given]
    texts = all(isinstance(one, str) and one for one in entries)
    if not texts and not all(map(_are_tokens, entries)):
        raise invalid(
            "'input' must be a text, tokens, or a list of either, none empty",
            param="input",
            code="invalid_type",
        )


def _num(value: Any) -> int:
    return len(value) if isinstance(value, list) else 1


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)
