"""What a learner is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from rollout.learner.checkpoint import AnchorPlace
from rollout.learner.forward.check import ForwardCheck
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.preference.reference_cache import ReferenceCache
from rollout.learner.session import Session
from rollout.learner.train_step import Trainer
from rollout.seams import ObjectStore, Renderer
from rollout.weights.publisher import Publisher, Stored, name_whole, store_whole

Keep = Callable[[Mapping[str, torch.Tensor]], Stored]
"""Does something with a version's weights and returns the names that a store gives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerContext:
    """``reference`` and ``teacher`` are None where nothing needs them; ``renderer`` when there are no rows.

    ``reference_cache`` stands before the reference of an offline run that asked for it.
    ``check`` is what the start found; None: the model computes rows plainly, or has no logits.
    ``stores_each_step`` False: weights are stored with anchors only. ``publisher`` None: always whole.
    """

    trainer: Trainer
    session: Session
    place: AnchorPlace
    reference: nn.Module | None
    renderer: Renderer | None
    identity: Mapping[str, str]
    teacher: nn.Module | None = None
    reference_cache: ReferenceCache | None = None
    stores_each_step: bool = True
    publisher: Publisher | None = None
    check: ForwardCheck | None = None

    @property
    def keep_weights(self) -> Keep:
        """What becomes of a step's weights: stored, or only named where nobody would load them."""
        if not self.stores_each_step:
            return name_whole
        return self.publisher.store if self.publisher else partial(store_whole, self.store)

    @property
    def parallel(self) -> Parallel:
        """This process's place among the ranks."""
        return self.trainer.policy.parallel

    @property
    def store(self) -> ObjectStore:
        """Where objects are kept."""
        return self.place.store
