"""Where a learner stands still for an image of its process: between two steps, its anchor saved, with no thread or connection open.

Nothing of a run is in it there but its state: it begins anew from what it holds, as a standby does, in the run that it was
imaged in or in one that was restored from the image, whose configuration it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rollout.learner.checkpoint import AnchorPlace, Progress, state_tensors
from rollout.learner.context import LearnerContext
from rollout.learner.hash_chain import digest_state
from rollout.learner.model import randomness
from rollout.learner.objectives.registry import build_settings
from rollout.learner.session import Session
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
    """Where this process is imaged; nowhere, unless a supervisor has started it in a cell."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        folder = environment.get(CELL_VARIABLE)
        self._trainer: Trainer | None = None
        self._config: Path | None = None
        self._point = ImagePoint(
            digest=self._digest,
            renew=self._renew,
            environment={FOLDER_VARIABLE: folder} if folder else {},
        )

    def is_wanted(self) -> bool:
        """Whether to stand still now."""
        return self._point.is_wanted()

    def stand(self, stood: Stood) -> Path | None:
        """Stay while the image is made, or compared; the file of the run that is gone on with: None: the same one."""
        self._trainer, self._config = stood.parts.trainer, None
        self._point.reach(stood.progress.step)
        return self._config

    def _digest(self) -> str:
        assert self._trainer is not None, "only a learner that stands still is asked"
        weights = self._trainer.policy.weights()
        device = self._trainer.policy.parallel.device
        state = digest_state(state_tensors(self._trainer), randomness.digest(device))
        return join_digests(digest_tensors(weights), state)

    def _renew(self, variables: Mapping[str, str]) -> None:
        self._config = Path(variables[CONFIG_VARIABLE])
