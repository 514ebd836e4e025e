"""How a model's training forward is computed, from its configuration alone: packed, one by one, or not at all.

``Packed``: sequences side by side in one row, prompts shared; layers with windows, capped scores or sinks
included. ``Single``: every sequence whole, as transformers computes it; what is not known here is computed
so, since that is right by construction. ``Refused``: not a causal language model of text. What is packed was
measured (``docs/reference/models.md``). Never loads torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_PACKED = """
        afmoe apertus arcee aria_text biogpt bitnet cohere cohere2 cohere2_moe cwm diffllama
        ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo gemma gemma2 gemma3_text glm glm4
        glm4_moe gpt_neox gpt_oss granite granite_swa granitemoe granitemoe_swa granitemoeshared
        helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax jais2 jetmoe laguna llama mellum
        mimo_v2_flash minimax_m2 ministral ministral3 mistral mixtral nanochat olmo olmo2 olmo3
        olmoe opt persimmon phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 solar_open
        starcoder2 vaultgemma
"""
PACKED = frozenset(_PACKED.split())
"""Model types whose packed rows were measured to equal their plain forward."""

_ENCODERS = """
        bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert
        prophetnet reformer rembert roberta roberta-prelayernorm roc_bert roformer xlm xlm-roberta
        xlm-roberta-xl xlnet xmod
"""
ENCODERS = frozenset(_ENCODERS.split())
"""Model types that look ahead."""

LAYERS = frozenset(("full_attention", "sliding_attention"))
"""Kinds of layers that a packed row knows."""

LOOKS_AHEAD = (
    "its tokens look at later ones, so that it is no causal language model; take a decoder such as "
    "qwen3 or llama"
)

LENGTHS_MAX = 1 << 62

_NUM_EXPERTS = re.compile("^(?!.*(shared|per_tok)).*experts$")
"""As configurations name it: num_experts, num_local_experts, n_routed_experts, moe_num_experts and others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """``reason`` says why a model is not packed; empty where it is."""

    kind: Literal["Packed", "Single", "Refused"]
    reason: str = ""


def forward_of(config: Mapping[str, Any]) -> Forward:
    """How a model of this transformers configuration is computed."""
    family = str(config.get("model_type"))
    if family in ENCODERS or config.get("use_bidirectional_attention") in {True, "all"}:
        return Forward(kind="Refused", reason=LOOKS_AHEAD)
    if family not in PACKED:
        return Forward(kind="Single", reason="it is not known to keep neighbours in a row apart")
    others = sorted(set(config.get("layer_types") or ()) - LAYERS)
    if others:
        return Forward(kind="Single", reason=f"it has layers of {', '.join(others)}")
    return Forward(kind="Packed")


def chooses_experts(config: Mapping[str, Any]) -> bool:
    """Whether a model routes each token to some of its experts, by this configuration or one within it."""
    return any(
        chooses_experts(value)
        if isinstance(value, Mapping)
        else _NUM_EXPERTS.search(str(name)) and isinstance(value, int) and value > 1
        for name, value in config.items()
    )


def frequencies_hold(config: Mapping[str, Any]) -> int:
    """Tokens up to which a model's rotary frequencies do not depend on a sequence's length."""
    rope = rope_of(config)
    kind = rope.get("rope_type") or rope.get("type")
    if kind == "longrope":
        original = rope.get("original_max_position_embeddings")
        return int(original or config.get("original_max_position_embeddings") or 0)
    if kind == "dynamic":
        return int(
            rope.get("original_max_position_embeddings")
            or config.get("max_position_embeddings")
            or 0
        )
    return LENGTHS_MAX


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rotary settings in the present form, from either form of the file."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}
