"""What one step works on, whatever the algorithm: the seam between the step and a loss.

``policy_work`` (groups of sampled completions) and ``sft_work`` (rows) are the two kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rollout.algorithms.aggregation import Denominators
from rollout.learner.objectives.metrics import LOSS_PARTS
from rollout.learner.objectives.plan import GroupShape, MicroBatch, Update


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """What a micro-batch was computed from, detached, per scored token ([C]); for whoever looks closer.

    ``lengths`` are the scored tokens of each sample in the micro-batch's order. Without actors (SFT)
    there are no old and no actor logprobs.
    """

    lengths: tuple[int, ...]
    logprobs_C: Tensor
    entropy_C: Tensor
    mask_C: Tensor
    old_logprobs_C: Tensor | None = None
    actor_logprobs_C: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroLoss:
    """The share of one micro-batch: ``loss`` to differentiate, detached sums and maxima for metrics.

    ``tokens`` is None where no token is scored (reward models).
    """

    loss: Tensor
    sums: dict[str, Tensor]
    tokens: TokenView | None = None
    maxima: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePart:
    """The share of one micro-batch in a critic's loss, and detached sums for metrics."""

    loss: Tensor
    sums: dict[str, Tensor]
    maxima: dict[str, Tensor] = field(default_factory=dict)


class Work(Protocol):
    """One step's batch in the hands of one algorithm."""

    def shapes(self) -> Sequence[GroupShape]:
        """Lengths, for the plan."""
        ...

    def prepare(self, model: nn.Module, passes: Sequence[Sequence[MicroBatch]]) -> None:
        """Compute what must be known before the first update; ``passes`` are this rank's, by update."""
        ...

    def denominators(self, update: Update) -> Denominators:
        """Counts over all ranks and micro-batches of one update."""
        ...

    def micro_loss(self, model: nn.Module, micro: MicroBatch, whole: Denominators) -> MicroLoss:
        """The loss of one micro-batch under the model as it is now."""
        ...

    def filtered(self) -> Mapping[int, str]:
        """Positions of groups or rows that no update uses, and why: their disposition."""
        ...

    def metrics(self, step: int) -> dict[str, Any]:
        """What the batch itself says: rewards, lengths, staleness."""
        ...


@runtime_checkable
class ValueWork(Protocol):
    """Work that also trains a critic."""

    def value_loss(self, critic: nn.Module, micro: MicroBatch, whole: Denominators) -> ValuePart:
        """The critic's loss on one micro-batch."""
        ...


class Totals:
    """Adds up the sums and maxima of a step's micro-batches, then over ranks."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}

    def add(self, part: MicroLoss | ValuePart) -> None:
        """Take in one micro-batch."""
        for name, value in part.sums.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        for name, value in part.maxima.items():
            known = self._maxima.get(name)
            self._maxima[name] = value if known is None else torch.maximum(known, value)

    def loss(self, device: torch.device) -> Tensor:
        """What all losses of this rank add up to, on the device."""
        parts = [value for name, value in self._sums.items() if name in LOSS_PARTS]
        return torch.stack(parts).sum() if parts else torch.zeros((), device=device)

    def local(self) -> tuple[dict[str, float], dict[str, float]]:
        """Sums and maxima of this rank as numbers."""
        return _numbers(self._sums), _numbers(self._maxima)


def _numbers(values: dict[str, Tensor]) -> dict[str, float]:
    if not values:
        return {}
    stacked = torch.stack([value.double() for value in values.values()])
    return dict(zip(values, stacked.tolist(), strict=True))
