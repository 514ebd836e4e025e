"""What is known about the world when a manifest is checked. Everything may be unknown (None)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The shape of a model, enough for context and memory arithmetic.

    ``num_heads`` are of queries, ``intermediate_size`` the width of the MLP; None: as most models of this size have.
    ``normalises_heads``: queries and keys are normalised (Qwen3).
    """

    num_parameters: int
    hidden_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    num_heads: int | None = None
    intermediate_size: int | None = None
    normalises_heads: bool = False

    @property
    def query_size(self) -> int:
        """Numbers of all queries of a token."""
        return self.hidden_size if self.num_heads is None else self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Numbers of all keys of a token; its values have as many."""
        return self.num_kv_heads * self.head_dim

    @property
    def mlp_size(self) -> int:
        """Width of the MLP."""
        return self.intermediate_size or 4 * self.hidden_size


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """What a look at the data gave. ``overlap`` counts evaluation prompts that training also has."""

    num_rows: int | None = None
    prompt_tokens_max: int | None = None
    overlap: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """``accelerator_bytes`` maps an accelerator class to its memory.

    ``host_bytes`` is this machine's, ``device_bytes`` its accelerators'.
    """

    platform: Literal["any", "local", "cluster"] = "any"
    model: ModelFacts | None = None
    data: DataFacts | None = None
    accelerator_bytes: Mapping[str, int] = field(default_factory=dict)
    host_bytes: int | None = None
    device_bytes: tuple[int, ...] = ()


NO_FACTS = Facts()
