"""Going on with a program from its image: everything is looked at before, compared after, and only then it takes a step."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rollout.errors import SnapshotRefused
from rollout.runs.processes.saving import ALGORITHM, is_unsaved
from rollout.runs.run_dir import runs_home
from rollout.runs.snapshots.places import Found
from rollout.seams import ObjectSource
from rollout.snapshots.manifest import LayerRecord, Manifest
from rollout.snapshots.processes import point
from rollout.snapshots.processes.cell import (
    LIVE,
    RESTORE,
    WORK,
    Cell,
    ask,
    fresh_folder,
    keeper_of,
    locked,
    make_cell,
    processes_home,
    renew,
    wait_started,
)
from rollout.snapshots.processes.contract import ProcessSnapshotter, require_support
from rollout.snapshots.processes.criu import read_errors
from rollout.snapshots.processes.feeding import ImageFeed
from rollout.snapshots.processes.image import ImageFacts, OpenedImage, open_image, read_facts
from rollout.snapshots.processes.init import IMAGED
from rollout.snapshots.processes.node import read_node, require_same_files, require_same_node
from rollout.snapshots.processes.sealing import Sealer, open_sealer
from rollout.snapshots.signing import key_path, read_public, require_trusted

RESTORE_SECONDS_MAX = 600.0
RESTORE_LOG = "restore.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A program that goes on. ``compared``: its state has the digest that it had."""

    cell: Cell
    keeper: subprocess.Popen[bytes]
    compared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Restorable:
    """An image of this installation and machine, whose files are as they were."""

    manifest: Manifest
    source: ObjectSource
    layer: LayerRecord
    facts: ImageFacts
    sealer: Sealer


Start = Callable[[Sequence[str]], subprocess.Popen[bytes]]
"""Starts the keeper of a cell that CRIU, whose command it is given, brings the program back in."""


def require_restorable(found: Found, snapshotter: ProcessSnapshotter) -> Restorable:
    """Raise SnapshotRefused for an image that must not go on here, with the reason; nothing is written."""
    manifest = found.manifest
    support = require_support(snapshotter, tried=False)  # it is about to try
    if require_own(manifest) and manifest.header.run.algorithm != ALGORITHM:
        raise SnapshotRefused(
            f"snapshot {manifest.id} is of a run, and its image of the run's learner: go on with both by"
            f" rollout run -f FILE --resume {manifest.id}"
        )
    require_same_node(manifest.header.runtime, read_node(support.version))
    image = open_own(manifest, found.place.source)
    require_same_files(image.facts.files)
    return image


def open_own(manifest: Manifest, source: ObjectSource) -> Restorable:
    """The image of a snapshot of this installation. Raises SnapshotRefused, StoreError."""
    layer, run = require_own(manifest), manifest.header.run
    sealer = open_sealer(key_path(os.environ), run.namespace, run.uid)
    facts = read_facts(layer, sealer, source)
    return Restorable(manifest=manifest, source=source, layer=layer, facts=facts, sealer=sealer)


def require_own(manifest: Manifest) -> LayerRecord:
    """The process image of a snapshot that this installation has signed: no other's is taken, whoever is trusted."""
    own = read_public(key_path(os.environ))
    require_trusted(manifest, {own} if own else set())
    layer = manifest.layer("process")
    if layer is None:
        held_kinds = ", ".join(one.kind for one in manifest.layers)
        raise SnapshotRefused(
            f"snapshot {manifest.id} holds {held_kinds}, and no image of processes: begin a run with it"
        )
    return layer


@contextlib.contextmanager
def restored(
    image: Restorable, snapshotter: ProcessSnapshotter, variables: Mapping[str, str]
) -> Iterator[Restored]:
    """The program at work again, while it lasts; ``variables`` are handed to its point. Raises SnapshotRefused, StoreError."""
    run, facts = image.manifest.header.run, image.facts
    if variables and not facts.digest:
        raise SnapshotRefused(
            f"--renew: {run.name} has no point at which it takes variables: what it held, it holds"
        )
    home = processes_home(runs_home(os.environ))
    cell = make_cell(home, run.name, facts.argv, run.uid)
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(cell, LIVE))

        def start(argv: Sequence[str]) -> subprocess.Popen[bytes]:
            return stack.enter_context(keeper_of(cell, RESTORE, argv))

        keeper = bring_back(cell, image, snapshotter, start, variables)
        yield Restored(cell=cell, keeper=keeper, compared=bool(facts.digest))


def bring_back(
    cell: Cell,
    image: Restorable,
    snapshotter: ProcessSnapshotter,
    start: Start,
    variables: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """The keeper of the program at work again, in a cell whose ``LIVE`` is the caller's. Raises SnapshotRefused, StoreError.

    What ``start`` has started is the caller's to end.
    """
    with locked(cell, point.HOLD), locked(cell, WORK):
        opened = _prepare(cell, image)
        with opened.pages, ImageFeed(cell.dump, opened.files, opened.pages) as feed:
            keeper = start(snapshotter.restore_argv())
            _wait_until_it_goes_on(cell, keeper, feed)
        _compare(cell, keeper, image.facts)
        if variables:
            renew(cell, variables)
        return keeper


def _prepare(cell: Cell, image: Restorable) -> OpenedImage:
    """What process 1 reads, in the cell's folder, and what CRIU does."""
    if is_unsaved(cell):
        raise SnapshotRefused(
            f"{cell.name} was ended, and its last state is no image yet: rollout process save {cell.uid}"
        )
    fresh_folder(cell.dump)
    told = {"root": image.facts.root, "pipe": image.facts.pipe}
    point.write_whole(cell.folder / IMAGED, json.dumps(told))
    for stale in (point.RENEWED, point.ORDER):  # of the program as it went on after the image
        (cell.folder / stale).unlink(missing_ok=True)
    if image.facts.digest:
        point.write_whole(cell.folder / point.READY, "")
    else:
        (cell.folder / point.READY).unlink(missing_ok=True)
    return open_image(image.layer, image.sealer, image.source)


def _wait_until_it_goes_on(cell: Cell, keeper: subprocess.Popen[bytes], feed: ImageFeed) -> None:
    tree = wait_started(cell, keeper, RESTORE_SECONDS_MAX)
    said = read_errors(cell.dump / RESTORE_LOG) if tree is None else ""
    shutil.rmtree(cell.dump, ignore_errors=True)
    if feed.failure is not None:
        raise feed.failure
    if tree is None:
        raise SnapshotRefused(f"the image does not go on: CRIU: {said}")


def _compare(cell: Cell, keeper: subprocess.Popen[bytes], facts: ImageFacts) -> None:
    """The oracle: what goes on says of its state what was said before it was imaged."""
    if not facts.digest:
        return
    told = ask(cell, keeper)
    if told.digest != facts.digest:
        raise SnapshotRefused(
            f"{cell.name} went on with another state than was imaged: it was {facts.digest}, is {told.digest};"
            " it was ended before its next step"
        )
