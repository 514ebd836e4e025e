"""What a memory estimate and a plan need to know of a model: its sizes, read or known beforehand.

Decoder-only models (Qwen2, Qwen3, Llama and their like), and mixtures of experts of the types that ``experts`` knows; of
others the experts are counted as one. Refuses to guess: a configuration without the sizes is a SpecError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.errors import SpecError
from rollout.models.experts.families import count_experts
from rollout.models.forwards import forward_of, frequencies_hold


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder.

    ``context`` is the longest sequence in tokens, with rotary frequencies that follow a sequence's length the
    longest that leaves them as they are: an actor meets a sequence's length token by token, a learner at once.
    ``qkv_bias`` and ``qk_norm`` are Qwen2's and Qwen3's
    extra parameters; ``template_family`` names the chat markup (``chatml``, ``llama3``, ``none``). ``expert_parameters``: of
    a mixture of experts all that stands in the place of a dense MLP, over ``expert_layers`` layers.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    tied: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    template_family: str = "none"
    expert_layers: int = 0
    expert_parameters: int = 0

    @property
    def num_parameters(self) -> int:
        """Exact count of trainable numbers; a tied head counts once."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        dense = 3 * self.hidden * self.intermediate
        layers = self.layers * self._layer_parameters() + (self.layers - self.expert_layers) * dense
        return embeddings + layers + self.expert_layers * self.expert_parameters + self.hidden

    def _layer_parameters(self) -> int:
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.hidden * wide + 2 * self.hidden * narrow
        bias = wide + 2 * narrow if self.qkv_bias else 0
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return attention + bias + norms

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers that the key-value cache keeps for one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def read_shape(directory: Path) -> ModelShape:
    """The shape in a model folder's ``config.json``. Raises SpecError when sizes are missing."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text())
        known = forward_of(config)
        if known.kind == "Refused":
            raise SpecError(f"{path}: {config.get('model_type')} cannot be trained: {known.reason}")
        return parse_shape_config(config)
    except (OSError, ValueError, KeyError) as error:
        raise SpecError(
            f"{path}: cannot read the model's sizes ({error!r}); expected the config.json of a dense "
            f"decoder such as Qwen2, Qwen3 or Llama"
        ) from error


def parse_shape_config(config: Mapping[str, Any]) -> ModelShape:
    """The shape in a transformers configuration. Raises KeyError for a missing size."""
    family = str(config.get("model_type", ""))
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    expert_layers, expert_parameters = count_experts(config)
    return ModelShape(
        hidden=hidden,
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate=int(config["intermediate_size"]),
        vocab=int(config["vocab_size"]),
        context=min(int(config["max_position_embeddings"]), frequencies_hold(config)),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family in {"qwen2", "qwen2_moe"},
        qk_norm=family in {"qwen3", "qwen3_moe"},
        template_family={"qwen2": "chatml", "qwen3": "chatml", "llama": "llama3"}.get(
            family, "none"
        ),
        expert_layers=expert_layers,
        expert_parameters=expert_parameters,
    )
