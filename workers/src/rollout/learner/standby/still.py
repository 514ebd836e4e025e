"""Where a learner stands still for an image of its process: between two steps, its anchor saved, with no thread or connection open.

Nothing of a run is in it there but its state: it begins anew from what it holds, as a standby does, in the run that it was
imaged in or in one that was restored from the image, whose configuration it is told. Several ranks stand together: the first
has the point, the others do as it orders. The connections between them are of the image.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rollout.learner.checkpoint import AnchorPlace, Progress
from rollout.learner.context import LearnerContext
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.registry import build_settings
from rollout.learner.session import Session
from rollout.learner.standby.orders import GO, TELL, Orders
from rollout.learner.state_digest import digest_ranks
from rollout.learner.train_step import Trainer
from rollout.objects.opening import open_store
from rollout.snapshots.processes.point import FOLDER_VARIABLE, ImagePoint
from rollout.snapshots.processes.told import CELL_VARIABLE, CONFIG_VARIABLE, join_digests
from rollout.weights.digest import digest_tensors
from rollout.weights.publisher import Publisher
from rollout_api.worker import WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Stood:
    """What a learner that stands still holds: the trainer has the state of ``progress``."""

    parts: LearnerContext
    progress: Progress

    def begin(self, config: WorkerConfig, session: Session) -> LearnerContext:
        """The parts of a learner of ``config`` around the same state. Raises SpecError, StoreError."""
        store = open_store(config, "learner")
        return replace(
            self.parts,
            trainer=replace(self.parts.trainer, settings=build_settings(config)),
            session=session,
            place=AnchorPlace(store=store, snapshots_dir=Path(config.layout.run_dir) / "snapshots"),
            publisher=Publisher(store),
        )


class StillPoint:
    """Where this process is imaged, with its other ranks; nowhere, unless a supervisor has started it in a cell."""

    def __init__(self, environment: Mapping[str, str], parallel: Parallel) -> None:
        folder = environment.get(CELL_VARIABLE)
        self._folder = Path(folder) if folder else None
        self._parallel = parallel
        self._trainer: Trainer | None = None
        self._step = 0
        self._orders: Orders | None = None
        self._renewed: dict[str, str] = {}
        self._point = ImagePoint(
            digest=self._digest,
            renew=self._renewed.update,
            environment={FOLDER_VARIABLE: folder} if folder and parallel.is_main else {},
        )

    def is_wanted(self) -> bool:
        """Whether to stand still now; call on every rank."""
        return self._folder is not None and self._parallel.on_main(self._point.is_wanted, bool)

    def stand(self, stood: Stood) -> Path | None:
        """Stay while the image is made, or compared; the file of the run that is gone on with: None: the same one.

        Call on every rank.
        """
        assert self._folder is not None, "only who lives in a cell is wanted"
        self._trainer, self._step = stood.parts.trainer, stood.progress.step
        self._renewed.clear()
        name = self._parallel.on_main(lambda: secrets.token_hex(8), str)
        self._orders = Orders(folder=self._folder, name=name)
        if self._parallel.is_main:
            self._point.reach(stood.progress.step)
            self._orders.give(GO)
        else:
            while self._orders.wait() == TELL:
                self._digest()
        renewed = self._parallel.on_main(lambda: self._renewed, dict[str, str])
        os.environ.update(renewed)
        return Path(renewed[CONFIG_VARIABLE]) if renewed else None

    def _digest(self) -> str:
        """Of the state of all ranks; the first has the others help."""
        trainer, orders = self._trainer, self._orders
        assert trainer is not None and orders is not None, "only a learner that stands is asked"
        if self._parallel.is_main:
            orders.give(TELL)
        weights = trainer.policy.weights()
        named = self._parallel.on_main(lambda: digest_tensors(weights), str)
        return join_digests(named, digest_ranks(trainer, self._step))
