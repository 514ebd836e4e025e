"""The model a run works on."""

from typing import Literal

from rollout_api.base import ApiModel, Real, Text, filled, many
from rollout_api.v1alpha1.common import Dtype, ModelSource


class Lora(ApiModel):
    """Train a low-rank adapter instead of the weights (Hu 2021); served merged, or by vLLM as itself."""

    rank: int = filled(16, ge=1, le=1024)
    """Rank of the update."""
    alpha: int = filled(32, ge=1, le=65_536)
    """The update is scaled by alpha / rank."""
    targets: tuple[Literal["Attention", "Mlp", "Embedding", "Head"], ...] = many(
        4, default=("Attention", "Mlp"), extra={"x-rollout-preset": True}
    )
    """Which projections get an adapter. `Embedding` and `Head` are refused for now."""
    quantization: Literal["NF4"] | None = None
    """How the learner holds the frozen projections: `NF4` in 4.5 bits a value (QLoRA, Dettmers 2023, blocks of
    64), restored as they are computed with; the restored model, with the adapter merged in, is what
    is served. Needs `rollout-rl[qlora]`; not with fsdp. Unset: in `dtype`."""
    dropout: Real = filled(0.0, ge=0, lt=1)
    """Dropout on the adapter's input; RL needs 0, since it changes the policy, and the learner refuses
    more for now."""


class Model(ModelSource):
    """The model a run starts from, and in which form it is trained and served."""

    dtype: Dtype | None = None
    """Number format of the policy that actors serve and the learner's forward uses. Unset: Float32
    on CPU, BFloat16 on accelerators. Optimizer state is Float32 either way."""
    lora: Lora | None = None
    """Train an adapter. Unset: all weights."""
    chat_template: Text | None = None
    """Jinja template that renders messages, or `plain`, `chatml`, `llama3`. It goes with the weights: what
    takes them by `fromRun` renders alike. Unset: the tokenizer's own."""
