"""What is known about the world when a manifest is checked. Everything may be unknown (None)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The shape of a model, enough for context and memory arithmetic."""

    num_parameters: int
    hidden_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """What a look at the data gave. ``overlap`` counts evaluation prompts that training also has."""

    num_rows: int | None = None
    prompt_tokens_max: int | None = None
    overlap: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """``accelerator_bytes`` maps an accelerator class to its memory; ``host_bytes`` is this machine's."""

    platform: Literal["any", "local", "cluster"] = "any"
    model: ModelFacts | None = None
    data: DataFacts | None = None
    accelerator_bytes: Mapping[str, int] = field(default_factory=dict)
    host_bytes: int | None = None


NO_FACTS = Facts()
