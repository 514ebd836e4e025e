"""The numbers of supervised fine-tuning, taken once from the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollout_api.v1alpha1.training.train import Train
from rollout_api.worker import WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    """Supervised fine-tuning."""

    loss: Literal["CompletionOnly", "Full"]
    """Whether prompts are learned, too (``Full``), or completions only (TRL ``completion_only_loss``)."""
    packing: bool
    """Several sequences share a row of a micro-batch, none seeing another; False: each has a row of its own."""
    max_length: int
    """In tokens, prompt included; longer rows are cut at the end."""
    label_smoothing: float = 0.0
    """Share of each target's probability that is spread over the vocabulary, in [0, 1); 0: none."""


def build_sft(config: WorkerConfig, train: Train) -> SftSettings:
    """Settings from the manifest's ``sft``."""
    del config
    sft = train.algorithm.sft
    assert sft is not None
    return SftSettings(
        loss=sft.loss,
        packing=sft.packing,
        max_length=sft.max_length,
        label_smoothing=sft.label_smoothing,
    )
