"""An image of a program that runs in a cell, as a snapshot: held at its point, dumped, let go on, and then packed and signed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rollout.common.bounded import UNREADABLE
from rollout.errors import SnapshotRefused, SpecError
from rollout.ledger.records import Record
from rollout.runs.run_dir import runs_home
from rollout.runs.snapshots.places import (
    KnownPlace,
    WhereToLook,
    images_folder,
    open_object_path,
)
from rollout.snapshots.collection import pinned
from rollout.snapshots.manifest import LayerRecord, Manifest, RunFacts, SnapshotHeader
from rollout.snapshots.place import list_manifests
from rollout.snapshots.processes.cell import (
    WORK,
    Cell,
    ask,
    find_live,
    fresh_folder,
    list_cells,
    locked,
    processes_home,
    tree_in,
)
from rollout.snapshots.processes.contract import ProcessSnapshotter, Tree, require_support
from rollout.snapshots.processes.image import COMPLETE, NOTES, ImageFacts, pack_dump
from rollout.snapshots.processes.init import STARTED
from rollout.snapshots.processes.look import mapped_files, require_imageable, tree_of
from rollout.snapshots.processes.node import look_at_files, read_node
from rollout.snapshots.processes.point import HOLD
from rollout.snapshots.processes.sealing import open_sealer
from rollout.snapshots.saving import save_snapshot
from rollout.snapshots.signing import key_path, open_signer

ALGORITHM = "process"
"""What stands in a manifest in the place of an algorithm."""
LABEL_CHARACTERS_MAX = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """An image. ``new_bytes`` were stored for it; the program was stopped for ``stopped_seconds``."""

    manifest: Manifest
    place: KnownPlace
    new_bytes: int
    stopped_seconds: float


def place_of_images(object_path: str | None) -> KnownPlace:
    """Where images lie: the place that is named, else a folder beside the runs. Raises SpecError."""
    where = WhereToLook(object_path=object_path or str(images_folder(runs_home(os.environ))))
    return open_object_path(where, must_exist=False)


def save_image(
    program: str,
    snapshotter: ProcessSnapshotter,
    place: KnownPlace,
    *,
    stop: bool = False,
    label: str = "",
) -> Saved:
    """Make an image of a program that runs, which goes on, or is ended where ``stop``. Raises SnapshotRefused, StoreError."""
    support = require_support(snapshotter)
    if not label.isprintable() or len(label) > LABEL_CHARACTERS_MAX:
        raise SpecError(f"--label: expected at most {LABEL_CHARACTERS_MAX} printable characters")
    key = key_path(os.environ)
    signer = open_signer(key)  # refused before anything is held up
    home = processes_home(runs_home(os.environ))
    opened = place.open()
    ended = find_ended(home, program)
    cell, tree = (ended, None) if ended is not None else find_live(home, program)
    sealer = open_sealer(key, "", cell.uid)
    with dumped(cell, tree, snapshotter, stop=stop) as dump:
        base = newest_image(place, cell.uid)
        objects = set() if base is None else {part.object for part in base.parts}
        with pinned(place.named, objects):
            packed = pack_dump(
                cell.dump, dump.facts, sealer, opened.store, base, dump.num_processes
            )
            header = _header(cell, dump, read_node(support.version), label)
            manifest = save_snapshot(opened, header, [packed.taken], signer)
    return Saved(
        manifest=manifest,
        place=place,
        new_bytes=packed.new_bytes,
        stopped_seconds=dump.stopped_seconds,
    )


class Dump(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lies in a cell's folder, and what its program told of itself: the state after ``step``.

    ``ends``: the program was ended with it, and there is no other state of it.
    """

    facts: ImageFacts
    step: int
    num_processes: int
    ends: bool
    stopped_seconds: float = 0.0


@contextlib.contextmanager
def dumped(
    cell: Cell,
    tree: Tree | None,
    snapshotter: ProcessSnapshotter,
    *,
    stop: bool,
    hold: contextlib.ExitStack | None = None,
) -> Iterator[Dump]:
    """A program's dump in its folder, while it lasts; ``tree`` None: the one that is there. Raises SnapshotRefused.

    The program is held up until it is written, or until ``hold`` is closed. One that was ended leaves its dump where what is done with it fails.
    """
    with locked(cell, WORK):
        try:
            if tree is None:
                yield _read_dump(cell)
            else:
                with contextlib.ExitStack() as shortly:
                    (hold or shortly).enter_context(locked(cell, HOLD))
                    dump = _dump(cell, tree, snapshotter, stop=stop)
                yield dump
        except BaseException:
            if not is_unsaved(cell):
                shutil.rmtree(cell.dump, ignore_errors=True)
            raise
        shutil.rmtree(cell.dump, ignore_errors=True)


def find_ended(home: Path, given: str) -> Cell | None:
    """The cell of a name or UID whose program was ended with a dump that is no image yet."""
    found = [cell for cell in list_cells(home) if given in (cell.name, cell.uid)]
    return next((cell for cell in found if tree_in(cell) is None and is_unsaved(cell)), None)


def is_unsaved(cell: Cell) -> bool:
    """Whether a cell has the only state of a program that was ended: a repeat of ``save`` makes an image of it."""
    try:
        return (cell.dump / COMPLETE).exists() and _read_dump(cell).ends
    except SnapshotRefused:
        return False


def _read_dump(cell: Cell) -> Dump:
    try:
        return msgspec.json.decode((cell.dump / NOTES).read_bytes(), type=Dump)
    except (OSError, msgspec.ValidationError, *UNREADABLE) as error:
        raise SnapshotRefused(f"{cell.dump}: not a dump of ours: {error}") from error


def _dump(cell: Cell, tree: Tree, snapshotter: ProcessSnapshotter, *, stop: bool) -> Dump:
    told = ask(cell)
    began = time.monotonic()
    pids = tree_of(tree.init)
    require_imageable(pids)
    facts = ImageFacts(
        root=tree.root,
        pipe=int(json.loads((cell.folder / STARTED).read_text())["pipe"]),
        argv=cell.argv,
        digest=told.digest,
        files=look_at_files(mapped_files(pids)),
    )
    dump = Dump(facts=facts, step=told.step, num_processes=len(pids), ends=stop)
    folder = fresh_folder(cell.dump)
    (folder / NOTES).write_bytes(msgspec.json.encode(dump))
    snapshotter.dump(tree, folder, stop=stop)
    return msgspec.structs.replace(dump, stopped_seconds=time.monotonic() - began)


def newest_image(place: KnownPlace, uid: str) -> LayerRecord | None:
    """The image of a program, or of a run's learner, whose pages are looked at first."""
    found = [
        one
        for one in list_manifests(place.named)
        if isinstance(one, Manifest) and one.header.run.uid == uid and one.layer("process")
    ]
    newest = max(found, key=lambda one: one.header.created_at, default=None)
    return None if newest is None else newest.layer("process")


def _header(cell: Cell, dump: Dump, node: dict[str, str], label: str) -> SnapshotHeader:
    return SnapshotHeader(
        created_at=time.time(),
        label=label,
        run=RunFacts(
            name=cell.name,
            namespace="",
            uid=cell.uid,
            algorithm=ALGORITHM,
            spec_digest="",
            identity_format=0,
            identity={},
            contents={},
            dtype="",
            threads=0,
        ),
        lineage=0,
        step=dump.step,
        chain=dump.facts.digest,
        grade="exact",
        runtime=node,
    )
