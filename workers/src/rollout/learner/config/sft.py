"""The numbers of supervised fine-tuning, taken once from the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollout_api.v1alpha1.training.train import Train
from rollout_api.worker import WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    """Supervised fine-tuning. ``packing`` False computes every sequence in a row of its own."""

    loss: Literal["CompletionOnly", "Full"]
    packing: bool
    max_length: int
    label_smoothing: float = 0.0


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
