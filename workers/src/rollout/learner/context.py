"""What a learner is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import NoneType

import torch
from torch import nn

from rollout.engines.device_turns import DeviceTurn
from rollout.errors import InfrastructureError
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
    ``turn``: the device is shared with engines that sleep in it; None: it is the learner's.
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
    turn: DeviceTurn | None = None

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


@contextmanager
def in_turn(turn: DeviceTurn | None, parallel: Parallel) -> Iterator[None]:
    """Compute inside, on a device that is shared with engines which sleep meanwhile; call on every rank.

    What a step needed beside its state is handed back to the device before the turn ends, on every rank. A learner that
    fails gives nothing away: its turn ends with its process. Raises InfrastructureError where engines do not let it on.
    """
    if turn is None:
        yield
        return
    parallel.on_main(lambda: _take(turn), NoneType)
    yield
    if parallel.device.type == "cuda":
        torch.cuda.empty_cache()
    parallel.gather(None, NoneType)
    turn.give()


def _take(turn: DeviceTurn) -> None:
    try:
        turn.take()
    except (TimeoutError, OSError) as error:
        raise InfrastructureError(f"the learner had no turn on its device: {error}") from error
