"""The image of a run's learner, as the layer ``process`` of the run's snapshot: made with it, and looked at before it is taken up.

The learner stands still between two steps, with an anchor of that step: the image and the other layers are of one moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from rollout.common.atomic_files import replace_text
from rollout.errors import DumpCutOff, SnapshotRefused, SpecError
from rollout.runs.processes.restoring import Restorable, open_own
from rollout.runs.processes.saving import Dump, dumped, newest_image
from rollout.runs.run_dir import RunDir, runs_home
from rollout.runs.snapshots.places import KnownPlace, read_config
from rollout.runs.snapshots.restoring import Restore
from rollout.snapshots.collection import pinned
from rollout.snapshots.layers.contract import Moment, Taken
from rollout.snapshots.place import SnapshotPlace
from rollout.snapshots.processes.cell import Cell, cells_of_runs, list_cells, tree_in
from rollout.snapshots.processes.contract import ProcessSnapshotter, Tree, require_support
from rollout.snapshots.processes.image import pack_dump
from rollout.snapshots.processes.look import tree_of
from rollout.snapshots.processes.node import read_node, require_same_files, require_same_node
from rollout.snapshots.processes.sealing import open_sealer
from rollout.snapshots.processes.told import weights_of
from rollout.snapshots.signing import key_path

CELL_FILE = "learner-cell"
"""In a run's folder: the UID of its learner's cell."""
LAYER = "Process"
"""As ``spec.snapshots.include`` calls it."""

Beside = Callable[[Moment, SnapshotPlace], Taken]
"""A layer that is made beside those of the ledger and the store, of the same moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerImage:
    """A dump of a run's learner: its state after ``step``; ``take`` makes a layer of it."""

    step: int
    take: Beside


def name_cell(run: RunDir, cell: Cell) -> None:
    """Write down where the run's learner lives. Raises OSError."""
    replace_text(run.path / CELL_FILE, cell.uid)


def read_cell_name(run: RunDir) -> str | None:
    """The UID of the cell that the run's learner lived in before, None where there was none."""
    try:
        return (run.path / CELL_FILE).read_text().strip() or None
    except OSError:
        return None


def find_learner(run: RunDir) -> tuple[Cell, Tree]:
    """The cell and processes of a run's learner that is at work. Raises SpecError."""
    if LAYER not in read_config(run).spec.snapshots.include:
        raise SpecError(
            f"run {run.name}: its learner cannot be imaged: it was started without Process in spec.snapshots.include;"
            " write snapshots: {include: [TrainState, Process]} and go on with the run by --resume"
        )
    uid = read_cell_name(run)
    for cell in list_cells(cells_of_runs(runs_home(os.environ))):
        tree = tree_in(cell) if cell.uid == uid else None
        if tree is not None and cell.has_point:
            return cell, tree
    raise SpecError(
        f"run {run.name}: its learner is not at work now, so that there is nothing to image: leave --include process out,"
        " or repeat this while the run trains"
    )


@contextlib.contextmanager
def learner_imaged(
    run: RunDir, place: KnownPlace, snapshotter: ProcessSnapshotter
) -> Iterator[LearnerImage]:
    """The dump of a run's learner, while it lasts. Raises SpecError, SnapshotRefused, StoreError.

    The learner stands still until a layer is made of it, by when nobody deletes the objects of that moment.
    """
    version = require_support(snapshotter).version
    cell, tree = find_learner(run)
    facts = read_config(run).run
    sealer = open_sealer(key_path(os.environ), facts.namespace, facts.uid)
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as hold:
        try:
            dump = stack.enter_context(dumped(cell, tree, snapshotter, stop=False, hold=hold))
        except DumpCutOff:
            end_learner(tree)
            raise

        def keep_safe(name: str) -> None:
            """The run's coordinator deletes what nobody names, at any time."""
            stack.enter_context(pinned(place.named, {name}))

        def take(moment: Moment, opened: SnapshotPlace) -> Taken:
            hold.close()
            _require_same_moment(dump, moment)
            base = newest_image(place, facts.uid)
            relied = msgspec.structs.replace(dump.facts, cell=cell.uid, node=read_node(version))
            known = () if base is None else {part.object for part in base.parts}
            stack.enter_context(pinned(place.named, known))
            return pack_dump(
                cell.dump, relied, sealer, opened.store, base, dump.num_processes, keep_safe
            ).taken

        yield LearnerImage(step=dump.step, take=take)


def require_usable(restore: Restore, snapshotter: ProcessSnapshotter) -> Restorable:
    """The learner's image of a run's snapshot. Raises SnapshotRefused, StoreError, saying why it is not to be taken up."""
    support = require_support(snapshotter, tried=False)  # it is about to try
    image = open_own(restore.manifest, restore.source)
    require_same_node(image.facts.node, read_node(support.version))
    require_same_files(image.facts.files)
    if not image.facts.cell or weights_of(image.facts.digest) != restore.anchor.version.digest:
        raise SnapshotRefused(
            f"snapshot {restore.manifest.id}: its image is of other weights than its train state"
        )
    return image


def end_learner(tree: Tree) -> None:
    """End a learner that a CRIU which was killed may have left harmed: its supervisor starts it again from the anchor that it saved."""
    for pid in tree_of(tree.init):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _require_same_moment(dump: Dump, moment: Moment) -> None:
    told, anchor = weights_of(dump.facts.digest), moment.anchor
    if (told, dump.step) != (anchor.version.digest, anchor.step):
        raise SnapshotRefused(
            f"the learner told of weights {told} after step {dump.step}, and its anchor of step {anchor.step} is of"
            f" {anchor.version.digest}: no snapshot is made of both; take one without --include process"
        )
