"""What a learner is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from rollout.learner.parallel import Parallel
from rollout.learner.session import Session
from rollout.learner.state import AnchorPlace
from rollout.learner.step import Trainer
from rollout.objects.filesystem import name_parts
from rollout.seams import ObjectStore, Renderer

Keep = Callable[[Sequence[bytes | memoryview]], str]
"""Does something with the bytes of a weights file and returns the name that a store gives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerParts:
    """``reference`` and ``teacher`` are None where nothing needs them; ``renderer`` when there are no rows.

    ``stores_each_step`` False: weights are stored with anchors only.
    """

    trainer: Trainer
    session: Session
    place: AnchorPlace
    reference: nn.Module | None
    renderer: Renderer | None
    identity: Mapping[str, str]
    teacher: nn.Module | None = None
    stores_each_step: bool = True

    @property
    def keep_weights(self) -> Keep:
        """What becomes of a step's weights: stored, or only named where nobody would load them."""
        return self.store.put_parts if self.stores_each_step else name_parts

    @property
    def parallel(self) -> Parallel:
        """This process's place among the ranks."""
        return self.trainer.policy.parallel

    @property
    def store(self) -> ObjectStore:
        """Where objects are kept."""
        return self.place.store
