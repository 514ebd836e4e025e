"""A run whose learner may be imaged: it lives in a cell, and is brought back from the image of a snapshot where that can be.

Where it cannot, the reason is told and the learner begins as any other does, from the snapshot's train state: an image saves
time, and costs no run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from rollout.common.child_processes import Process, ProcessSpec
from rollout.errors import RolloutError, SnapshotRefused, SpecError
from rollout.learner.config.ranks import CONFIG_OPTION
from rollout.runs.plan.images import images_processes
from rollout.runs.processes.learners import name_cell, read_cell_name, require_usable
from rollout.runs.processes.restoring import Restorable, bring_back
from rollout.runs.run_dir import RunDir, runs_home
from rollout.runs.snapshots.restoring import Restore, find_cost
from rollout.snapshots.processes.cell import (
    LIVE,
    RESTORE,
    RUN,
    WORK,
    Cell,
    cells_of_runs,
    locked,
    make_cell,
    start_keeper,
)
from rollout.snapshots.processes.contract import ProcessSnapshotter
from rollout.snapshots.processes.criu import find_criu
from rollout.snapshots.processes.told import CELL_VARIABLE, CONFIG_VARIABLE
from rollout.supervisor.fork_server import WarmStarts
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.worker import WorkerConfig

LEARNER = "learner"
INSTEAD = "the learner begins from the snapshot's train state instead"
Note = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class LearnerCell:
    """A run's learner and where it lives. ``image``: what it is to be brought back from, until that is tried.

    ``is_settled``: nothing more is to be decided before it starts. ``came_back`` is it, until the supervisor takes it over.
    """

    cell: Cell
    snapshotter: ProcessSnapshotter
    spec: RolloutRunSpec
    note: Note
    image: Restorable | None = None
    is_settled: bool = True
    came_back: subprocess.Popen[bytes] | None = None

    def settle(self, learner: ProcessSpec, config: WorkerConfig, restore: Restore | None) -> None:
        """Bring the learner back from its image, where the run that ``config`` is goes on exactly as the snapshot's did."""
        image, self.image, self.is_settled = self.image, None, True
        if image is None or restore is None:
            return
        try:
            _require_exact(config, restore)
            self.came_back = self._bring_back(image, learner)
        except (RolloutError, OSError) as error:
            self.note(f"the image of the learner is not taken up: {error}; {INSTEAD}")
        else:
            self.note("the learner came back from its image, with the state that was imaged")

    def start(self, learner: ProcessSpec, keep: Iterable[int]) -> subprocess.Popen[bytes]:
        """The learner: the one that came back, else a fresh one."""
        if self.came_back is not None:
            back, self.came_back = self.came_back, None
            return back
        return self._start(learner, RUN, _argv(learner), keep)

    def close(self) -> None:
        """End a learner that came back and that nobody took over."""
        if self.came_back is not None:
            _end(self.came_back)

    def _start(
        self, learner: ProcessSpec, mode: str, argv: Sequence[str], keep: Iterable[int]
    ) -> subprocess.Popen[bytes]:
        env = {**learner.env, CELL_VARIABLE: str(self.cell.folder)}
        return start_keeper(self.cell, mode, argv, env, log=learner.log, keep=keep)

    def _bring_back(self, image: Restorable, learner: ProcessSpec) -> subprocess.Popen[bytes]:
        started: list[subprocess.Popen[bytes]] = []

        def start(argv: Sequence[str]) -> subprocess.Popen[bytes]:
            started.append(self._start(learner, RESTORE, argv, ()))
            return started[0]

        try:
            variables = _renewed(self.spec, learner)
            return bring_back(self.cell, image, self.snapshotter, start, variables)
        except BaseException:
            for one in started:
                _end(one)
            raise


class CellStarts:
    """Starts a run's learner in its cell, and every other process as before."""

    def __init__(self, starts: WarmStarts, cell: LearnerCell) -> None:
        self._starts, self._cell = starts, cell

    @property
    def descriptor(self) -> int:
        """As the starts of the others have it."""
        return self._starts.descriptor

    def is_ready(self, spec: ProcessSpec) -> bool:
        """Whether ``start`` would not wait."""
        return self._cell.is_settled if spec.name == LEARNER else self._starts.is_ready(spec)

    def start(self, spec: ProcessSpec, *, keep: Iterable[int] = ()) -> Process:
        """Start it, its output appended to its log."""
        if spec.name != LEARNER:
            return self._starts.start(spec, keep=keep)
        return self._cell.start(spec, keep)

    def close(self) -> None:
        """End what is there to start others; idempotent."""
        self._starts.close()
        self._cell.close()


@contextmanager
def learner_cell(
    spec: RolloutRunSpec, run: RunDir, restore: Restore | None, note: Note
) -> Generator[LearnerCell | None]:
    """The cell of a run's learner, while the run lasts; None where the run asks for no images. Raises SpecError."""
    if not images_processes(spec):
        if restore is not None and restore.manifest.layer("process") is not None:
            note(
                f"the snapshot's image of the learner is left out, as spec.snapshots.include has no Process; {INSTEAD}"
            )
        yield None
        return
    snapshotter = find_criu(os.environ)
    with ExitStack() as stack:
        image = _find_image(restore, snapshotter, note)
        cell = None if image is None else _enter_again(stack, image, note)
        if cell is None:
            image, cell = None, _make_cell(read_cell_name(run))
            stack.enter_context(locked(cell, LIVE))
        stack.callback(_leave, cell)
        name_cell(run, cell)
        yield LearnerCell(
            cell=cell,
            snapshotter=snapshotter,
            spec=spec,
            note=note,
            image=image,
            is_settled=image is None,
        )


def _leave(cell: Cell) -> None:
    """Remove what the cell had, unless the last image of the learner is still being packed from it."""
    with suppress(SpecError), locked(cell, WORK):
        shutil.rmtree(cell.folder, ignore_errors=True)


def _make_cell(uid: str | None) -> Cell:
    return make_cell(cells_of_runs(runs_home(os.environ)), LEARNER, (), uid)


def _enter_again(stack: ExitStack, image: Restorable, note: Note) -> Cell | None:
    """The cell that an image was made in, which its processes know by its path; None where another learner lives in it."""
    cell = _make_cell(image.facts.cell)
    try:
        stack.enter_context(locked(cell, LIVE))
    except RolloutError as error:
        note(f"the image of the learner is not taken up: {error}; {INSTEAD}")
        return None
    return cell


def _find_image(
    restore: Restore | None, snapshotter: ProcessSnapshotter, note: Note
) -> Restorable | None:
    """The image of a snapshot that a run begins with, where it can go on here; else why not is told."""
    if restore is None or restore.manifest.layer("process") is None:
        return None
    try:
        return require_usable(restore, snapshotter)
    except RolloutError as error:
        note(f"the image of the learner is not taken up: {error}; {INSTEAD}")
        return None


def _require_exact(config: WorkerConfig, restore: Restore) -> None:
    changes = find_cost(restore, config)
    if changes:
        named = ", ".join(f"spec.{one.field}" for one in changes)
        raise SnapshotRefused(f"the run is another one than was imaged, by {named}")
    if config.resolved.grade != "Exact":
        raise SnapshotRefused(f"the run is graded {config.resolved.grade}, not Exact")


def _renewed(spec: RolloutRunSpec, learner: ProcessSpec) -> Mapping[str, str]:
    """What a learner that came back is told in the place of what it remembers: its run's, and the credentials of now."""
    secrets = {
        one.name: os.environ[one.name]
        for one in spec.env
        if one.secret and one.goes_to("Learner") and one.name in os.environ
    }
    config = learner.arguments[learner.arguments.index(CONFIG_OPTION) + 1]
    return {**secrets, **learner.env, CONFIG_VARIABLE: config}


def _argv(learner: ProcessSpec) -> tuple[str, ...]:
    return (sys.executable, "-m", learner.module, *learner.arguments)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
