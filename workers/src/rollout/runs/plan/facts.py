"""What the checks of a manifest are told of the world."""

from __future__ import annotations

from rollout.models.shapes import ModelShape
from rollout_api.checks.facts import ModelFacts


def model_facts(shape: ModelShape) -> ModelFacts:
    """The sizes of a model, as the checks take them."""
    return ModelFacts(
        num_parameters=shape.num_parameters,
        hidden_size=shape.hidden,
        num_layers=shape.layers,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        normalises_heads=shape.qk_norm,
        vocab_size=shape.vocab,
        context_length=shape.context,
    )
