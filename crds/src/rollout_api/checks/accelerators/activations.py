"""Bytes that a learner's pass has beyond what always lies there: what the layers keep, the head's, one layer's backward.

The counts are those of the tensors that transformers' Qwen2, Qwen3 and Llama save and that our own attention and head
add, per token, every token taken to be scored: of a layer 15.7 hidden, 4 of each query and key and 8 of the MLP's width in BFloat16 (its RMSNorm computes in
float32), of the head 14.5 a logit. `make bench TARGET=memory` holds them against what a step has alive.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollout_api.checks.facts import ModelFacts

LOGITS_OF_A_PART = 1 << 25
"""Of more logits than these the learner's head has a part at a time."""

_PART_COPIES = 4
"""Float32 numbers of a part that its backward has at a time, for each logit."""

_MATRICES = 3
"""Of the embedding's size: its gradient, the head's where they are tied, and their sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerToken:
    """Bytes a token of one layer, by what they grow with; ``head`` by hidden size and by vocabulary."""

    hidden: float
    queries: float
    normalised: float
    mlp: float
    more_hidden: float
    more_mlp: float
    head_hidden: float
    logit: float


_BY_WIDTH = {
    2: PerToken(
        hidden=15.7,
        queries=4.2,
        normalised=6.0,
        mlp=8.0,
        more_hidden=6.0,
        more_mlp=4.1,
        head_hidden=8.5,
        logit=14.5,
    ),
    4: PerToken(
        hidden=24.0,
        queries=8.2,
        normalised=8.0,
        mlp=16.0,
        more_hidden=4.2,
        more_mlp=10.3,
        head_hidden=12.7,
        logit=14.0,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes of one pass. ``kept`` until the backward; then the larger of ``head`` and ``layer``, at last ``embedding``."""

    kept: int
    head: int
    layer: int
    embedding: int

    def most(self, *, gradients: int) -> int:
        """The most at a time beside all ``gradients``: those of an only pass come as what was kept goes."""
        most = self.kept + max(self.head, self.layer) - gradients
        return max(most, self.layer, self.embedding)


def pass_activations(
    model: ModelFacts, tokens: int, width: int, *, recomputes: bool
) -> Activations:
    """Of a pass over ``tokens``, in numbers of ``width`` bytes."""
    each = _BY_WIDTH[width]
    heads = model.query_size + model.key_size
    attention = heads * (each.queries + (each.normalised if model.normalises_heads else 0))
    layer = each.hidden * model.hidden_size + attention + each.mlp * model.mlp_size
    backward = each.more_hidden * model.hidden_size + each.more_mlp * model.mlp_size
    if recomputes:
        kept, backward = width * model.hidden_size, layer + backward
    else:
        kept = layer
    return Activations(
        kept=round(tokens * model.num_layers * kept),
        head=_head(model, tokens, width),
        layer=round(tokens * backward),
        embedding=_MATRICES * model.vocab_size * model.hidden_size * width,
    )


def _head(model: ModelFacts, tokens: int, width: int) -> int:
    """All logits and their gradient, or a part of them with the head's gradient in float32 and as it is handed on."""
    each = _BY_WIDTH[width]
    states = round(tokens * model.hidden_size * each.head_hidden)
    if tokens * model.vocab_size <= LOGITS_OF_A_PART:
        return states + round(tokens * model.vocab_size * each.logit)
    matrix = model.vocab_size * model.hidden_size * (4 + (width if width < 4 else 0))
    return states + _PART_COPIES * LOGITS_OF_A_PART * 4 + matrix
