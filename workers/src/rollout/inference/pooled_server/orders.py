"""What a model of vectors or scores is asked for: bodies as OpenAI and vLLM take them in, sequences of tokens out. Pure.

A pair is one sequence to a model with a head: as its tokenizer joins two texts (encoders), as its template renders a
``query`` and a ``document``, or, of a reward model, as a user's question and the assistant's answer. To a model of vectors
it is two sequences, and the score the cosine between them, as vLLM has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import Template

from rollout.engines.pooled.module import PooledInput
from rollout.errors import DataError, SpecError
from rollout.inference.embedded_server.orders import OrderRefused, read_messages
from rollout.models.pooled import Activation, PooledModel
from rollout.rendering.chat import ChatRenderer
from rollout.rendering.plain import PlainRenderer
from rollout.rendering.template import render_pair
from rollout.rendering.tokenizer import ModelTokenizer
from rollout.types import Message

INPUTS_MAX = 2048
TOKENS_MAX = 300_000
"""Of one request, as OpenAI's API bounds it."""

Encoding = Literal["float", "base64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledFacts:
    """What an order is checked against. ``chat``: how conversations are rendered, of models that take any; ``pairs``: its template, where that names a query and a document."""

    model: PooledModel
    tokenizer: ModelTokenizer
    vocab_size: int
    hidden_size: int
    chat: ChatRenderer | PlainRenderer | None = None
    pairs: Template | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledOrder:
    """One body: what is computed, and how it is told. ``num_queries``: of vectors that are compared, the first ones.

    ``documents``: of a ranking, what is ranked, of which the best ``top`` are told.
    """

    inputs: tuple[PooledInput, ...]
    encoding: Encoding = "float"
    dimensions: int | None = None
    activation: Activation = "none"
    num_queries: int = 0
    documents: tuple[str, ...] = ()
    top: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(len(one.ids) for one in self.inputs)


def read_embeddings(body: Mapping[str, Any], facts: PooledFacts) -> PooledOrder:
    """The order of a body of ``/v1/embeddings``. Raises OrderRefused."""
    _require_task(facts, "embed")
    encoding = body.get("encoding_format") or "float"
    if encoding not in {"float", "base64"}:
        raise OrderRefused("'encoding_format' must be float or base64", "encoding_format")
    return _bounded(
        PooledOrder(
            inputs=_read_inputs(body.get("input"), facts),
            encoding=encoding,
            dimensions=_read_dimensions(body.get("dimensions"), facts),
        ),
        facts,
    )


def read_classes(body: Mapping[str, Any], facts: PooledFacts) -> PooledOrder:
    """The order of a body of ``/classify``: texts, tokens or one conversation. Raises OrderRefused."""
    _require_task(facts, "score")
    messages = body.get("messages")
    if messages is not None and body.get("input") is not None:
        raise OrderRefused("give 'input' or 'messages', not both", "messages")
    if messages is None:
        inputs = _read_inputs(body.get("input"), facts)
    else:
        inputs = (_read_conversation(messages, facts),)
    return _bounded(PooledOrder(inputs=inputs, activation=_read_activation(body, facts)), facts)


def read_scores(body: Mapping[str, Any], facts: PooledFacts) -> PooledOrder:
    """The order of a body of ``/score``: one query and documents, or as many of each. Raises OrderRefused."""
    names = ("text_1", "text_2") if "text_1" in body else ("queries", "documents")
    queries, documents = (_read_texts(body.get(name), name) for name in names)
    if len(queries) not in {1, len(documents)}:
        raise OrderRefused(
            f"'{names[0]}' and '{names[1]}': expected one and any, or as many of each; got"
            f" {len(queries)} and {len(documents)}",
            names[0],
        )
    return _read_pairs(body, queries, documents, facts, names[1])


def read_ranking(body: Mapping[str, Any], facts: PooledFacts) -> PooledOrder:
    """The order of a body of ``/rerank``. Raises OrderRefused."""
    query = body.get("query")
    if not isinstance(query, str) or not query:
        raise OrderRefused("'query' must be a text", "query")
    top = body.get("top_n") or 0
    if type(top) is not int or top < 0:
        raise OrderRefused("'top_n' must be a whole number", "top_n")
    documents = _read_texts(body.get("documents"), "documents")
    return _read_pairs(body, (query,), documents, facts, "documents", ranked=True, top=top)


def _read_pairs(
    body: Mapping[str, Any],
    queries: Sequence[str],
    documents: Sequence[str],
    facts: PooledFacts,
    param: str,
    *,
    ranked: bool = False,
    top: int = 0,
) -> PooledOrder:
    if facts.model.task == "embed":
        inputs = tuple(_encode(one, facts, param) for one in (*queries, *documents))
    elif len(facts.model.labels) != 1:
        raise OrderRefused(
            f"this model has {len(facts.model.labels)} labels and no one score: ask /classify",
            None,
            "unsupported_route",
        )
    else:
        many = [queries[0]] * len(documents) if len(queries) == 1 else queries
        pairs = zip(many, documents, strict=True)
        inputs = tuple(_join(query, document, facts, param) for query, document in pairs)
    return _bounded(
        PooledOrder(
            inputs=inputs,
            activation=_read_activation(body, facts),
            num_queries=len(queries) if facts.model.task == "embed" else 0,
            documents=tuple(documents) if ranked else (),
            top=min(top, len(documents)) or len(documents),
        ),
        facts,
    )


def _require_task(facts: PooledFacts, task: str) -> None:
    if facts.model.task != task:
        done = {"embed": "vectors", "score": "scores"}[facts.model.task]
        raise OrderRefused(f"this model gives {done}", None, "unsupported_route")


def _read_inputs(given: Any, facts: PooledFacts) -> tuple[PooledInput, ...]:
    """A text, texts, the tokens of one, or the tokens of several."""
    of_tokens = isinstance(given, list) and given and all(type(one) is int for one in given)
    if isinstance(given, str) or of_tokens:
        given = [given]
    if not isinstance(given, list) or not 1 <= len(given) <= INPUTS_MAX:
        raise OrderRefused(
            f"'input' must be a text, tokens, or 1 to {INPUTS_MAX} of either", "input"
        )
    return tuple(
        _encode(one, facts, "input") if isinstance(one, str) else _read_tokens(one, facts)
        for one in given
    )


def _read_tokens(given: Any, facts: PooledFacts) -> PooledInput:
    good = isinstance(given, list) and given and all(type(one) is int for one in given)
    if not good:
        raise OrderRefused("'input' has something that is neither text nor tokens", "input")
    if not all(0 <= one < facts.vocab_size for one in given):
        raise OrderRefused(
            f"'input' has a token outside the vocabulary of {facts.vocab_size}", "input"
        )
    return PooledInput(ids=tuple(given))


def _read_texts(given: Any, name: str) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    good = isinstance(texts, list) and all(isinstance(one, str) and one for one in texts)
    if not good or not 1 <= len(texts) <= INPUTS_MAX:
        raise OrderRefused(f"'{name}' must be a text, or 1 to {INPUTS_MAX} texts", name)
    return texts


def _encode(text: str, facts: PooledFacts, param: str) -> PooledInput:
    if not text:
        raise OrderRefused(f"'{param}' has an empty text", param)
    try:
        return PooledInput(ids=facts.tokenizer.encode_whole(text))
    except DataError as error:
        raise OrderRefused(str(error), param) from error


def _join(query: str, document: str, facts: PooledFacts, param: str) -> PooledInput:
    try:
        if facts.model.looks_ahead:
            ids, types = facts.tokenizer.encode_pair(query, document)
            return PooledInput(ids=ids, types=types)
        if facts.pairs is not None:
            text = render_pair(facts.pairs, query, document, facts.tokenizer.specials)
            return PooledInput(ids=facts.tokenizer.encode(text))
        if facts.chat is not None:
            said = Message(role="assistant", content=document)
            asked = Message(role="user", content=query)
            return PooledInput(ids=facts.chat.render_training((asked, said))[0])
        return PooledInput(ids=facts.tokenizer.encode_whole(query + document))
    except (DataError, SpecError) as error:
        raise OrderRefused(str(error), param) from error


def _read_conversation(messages: Any, facts: PooledFacts) -> PooledInput:
    if facts.chat is None:
        raise OrderRefused("this model takes no conversations: give 'input'", "messages")
    read = read_messages(messages)
    try:
        return PooledInput(ids=facts.chat.render_training(read)[0])
    except (DataError, SpecError) as error:
        raise OrderRefused(str(error), "messages") from error


def _read_dimensions(given: Any, facts: PooledFacts) -> int | None:
    if given is None:
        return None
    allowed = facts.model.dimensions
    if allowed is None:
        raise OrderRefused(
            "this model's vectors cannot be cut: its files name no dimensions",
            "dimensions",
            "unsupported_parameter",
        )
    good = type(given) is int and 1 <= given <= facts.hidden_size
    if not good or (allowed and given not in allowed):
        some = ", ".join(map(str, allowed)) or f"1 to {facts.hidden_size}"
        raise OrderRefused(f"'dimensions' must be one of {some}", "dimensions")
    return given


def _read_activation(body: Mapping[str, Any], facts: PooledFacts) -> Activation:
    wanted = body.get("use_activation")
    if wanted is None:
        return facts.model.activation
    if not isinstance(wanted, bool):
        raise OrderRefused("'use_activation' must be true or false", "use_activation")
    if not wanted:
        return "none"
    one = len(facts.model.labels) <= 1
    own = facts.model.activation
    return ("sigmoid" if one else "softmax") if own == "none" else own


def _bounded(order: PooledOrder, facts: PooledFacts) -> PooledOrder:
    longest = max(len(one.ids) for one in order.inputs)
    if any(not one.ids for one in order.inputs):
        raise OrderRefused("'input' has a text without tokens", "input")
    if longest > facts.model.context:
        raise OrderRefused(
            f"This model's maximum context length is {facts.model.context} tokens. However, your input has"
            f" {longest} tokens",
            "input",
            "context_length_exceeded",
        )
    if order.num_tokens > TOKENS_MAX:
        raise OrderRefused(
            f"{order.num_tokens} tokens: one request may have {TOKENS_MAX}", "input", "too_large"
        )
    return order
