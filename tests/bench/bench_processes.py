"""Images of a process beside CRIU alone: what a second one stores, and how long it takes to go on from one.

The program is a learner's worth of memory of which a few pages change between two images. Both go on with the same
image, in turns: CRIU from the plain files of its dump, ours from sealed objects, which are opened while CRIU reads them. Both sides
end where the program has told the digest of its state; what that takes of CRIU alone is told, too.

``run.py processes [MEGABYTES]`` (``make bench TARGET=processes``), as root, with the CRIU of the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, level, ratio

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY / "e2e"), str(REPOSITORY / "tests/rollout/snapshots/processes")]

from process_kit import PROGRAMS

from cluster import criu as criu_of_tests
from rollout.runs.processes.restoring import require_restorable, restored
from rollout.runs.processes.saving import dumped, place_of_images, save_image
from rollout.runs.snapshots.places import Found
from rollout.snapshots.processes import point
from rollout.snapshots.processes.cell import (
    LIVE,
    RESTORE,
    RUN,
    Cell,
    ask,
    find_live,
    keeper_of,
    locked,
    make_cell,
    processes_home,
    wait_started,
)
from rollout.snapshots.processes.contract import ProcessSnapshotter
from rollout.snapshots.processes.criu import HERE, find_criu
from rollout.snapshots.processes.init import IMAGED
from rollout.snapshots.processes.look import tree_of
from rollout.snapshots.processes.pages import PAGE_BYTES

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
START_SECONDS_MAX = 120.0
STEPS, PAUSE = "100000", "0.2"
"""Of a program that writes into one page, wherever that lies, at a step."""


def measure(megabytes: str = "256") -> Iterator[Figure]:
    """Two images of one program, and ROUNDS restores of the second by ours and by CRIU alone, who begins alternating."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        os.environ |= {"ROLLOUT_HOME": f"{name}/home", "XDG_CONFIG_HOME": f"{name}/config"}
        try:
            yield from _measure(int(megabytes), Path(name))
        finally:
            os.environ.clear()
            os.environ.update(before)


def _measure(megabytes: int, folder: Path) -> Iterator[Figure]:
    snapshotter = find_criu({**os.environ, "ROLLOUT_CRIU": str(criu_of_tests.ensure())})
    program = (sys.executable, str(PROGRAMS / "counter.py"), STEPS, str(megabytes), PAUSE, "quiet")
    cell = make_cell(processes_home(folder / "home"), "counter", program)
    place = place_of_images(None)
    with locked(cell, LIVE), keeper_of(cell, RUN, program) as keeper:
        assert wait_started(cell, keeper, START_SECONDS_MAX) is not None
        _wait_for_point(cell.folder)
        first = save_image("counter", snapshotter, place)
        second = save_image("counter", snapshotter, place)
        _, tree = find_live(cell.folder.parent, "counter")
        with dumped(cell, tree, snapshotter, stop=True) as dump:
            kept = folder / "bare"
            cell.dump.rename(kept)
        keeper.wait()
    size = second.manifest.layer("process").facts["pages"] * PAGE_BYTES
    yield level(
        "second image: new bytes of the memory", [second.new_bytes / size], "share", "<= 0.05"
    )
    yield level(
        "first image: stored bytes of the memory", [first.new_bytes / size], "share", "info"
    )
    ours, bare, asked = [], [], []
    our_cpu, asked_cpu = [], []
    image = Found(manifest=second.manifest, place=place)

    def go_on() -> None:
        began, spent = time.perf_counter(), time.process_time()
        with restored(require_restorable(image, snapshotter), snapshotter, {}) as gone_on:
            ours.append(time.perf_counter() - began)
            our_cpu.append(time.process_time() - spent + _cpu_seconds(gone_on.keeper))

    def go_on_bare() -> None:
        told = f'{{"root": {dump.facts.root}, "pipe": {dump.facts.pipe}}}'
        point.write_whole(cell.folder / IMAGED, told)
        for values, value in zip(
            (bare, asked, asked_cpu), _restore_bare(cell, snapshotter, kept), strict=True
        ):
            values.append(value)

    for number in range(ROUNDS):
        for side in (go_on, go_on_bare) if number % 2 else (go_on_bare, go_on):
            side()
    yield ratio("going on from an image against criu restore, both asked", ours, asked, ">= 0.77")
    yield ratio("the same, criu restore not asked", ours, bare, "info")
    yield ratio("the same, both asked, CPU seconds of all processes", our_cpu, asked_cpu, "info")
    yield level("going on from an image", ours, "s", "info")
    yield level("criu restore in a cell", bare, "s", "info")
    yield level("criu restore in a cell, and the program's digest", asked, "s", "info")


def _restore_bare(
    cell: Cell, snapshotter: ProcessSnapshotter, dump: Path
) -> tuple[float, float, float]:
    """Seconds from an empty cell to processes in it, to their digest, and of CPU; they are ended then."""
    began, spent = time.perf_counter(), time.process_time()
    from_files = {HERE: str(dump), "--stream": "-v2"}
    argv = [from_files.get(one, one) for one in snapshotter.restore_argv()]
    cell.dump.mkdir(exist_ok=True)
    with (
        locked(cell, LIVE),
        locked(cell, point.HOLD),
        keeper_of(cell, RESTORE, argv) as keeper,
    ):
        assert wait_started(cell, keeper, START_SECONDS_MAX) is not None
        there = time.perf_counter() - began
        ask(cell, keeper)
        asked = time.perf_counter() - began
        return there, asked, time.process_time() - spent + _cpu_seconds(keeper)


def _cpu_seconds(keeper: subprocess.Popen[bytes]) -> float:
    """Of a keeper, all below it, and those of them that have ended."""
    ticks = 0
    for pid in (keeper.pid, *tree_of(keeper.pid)):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _wait_for_point(folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not (folder / point.READY).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
