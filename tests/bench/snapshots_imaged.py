"""A run whose learner is imaged: how long training stands still for it, and what the image saves a run that begins with it.

SFT of 25 million parameters, on one process and on two ranks. Standing still is the longest time between two commits from the order on,
less that of a usual step: the anchor's save, CRIU's dump and the new beginning around the held state. A run that begins with the
snapshot is timed from its command to its first commit, with the image and, in turns, without it.

As root, with the CRIU of the tests.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from duel import environment
from figures import Figure, level, ratio
from jobs import MODEL
from snapshots_standby import steps_of

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY / "e2e")]

from cluster import criu as criu_of_tests
from rollout.runs.processes.learners import learner_imaged
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.creating import create_snapshot
from rollout.runs.snapshots.places import place_of_run
from rollout.snapshots.manifest import Manifest
from rollout.snapshots.processes.contract import ProcessSnapshotter, Support, Tree
from rollout.snapshots.processes.criu import find_criu
from rollout.snapshots.signing import key_path, open_signer

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
STEPS_BEFORE, STEPS_AFTER = 10, 5
MOVE_SECONDS_MAX, END_SECONDS_MAX = 300.0, 60.0
LEARNERS = {"one process": {}, "two ranks": {"processesPerNode": 2}}
IMAGED, PLAIN = ("TrainState", "Process"), ("TrainState",)


@dataclass(slots=True, kw_only=True)
class TimedCriu:
    """CRIU, and the seconds that each of its dumps took."""

    real: ProcessSnapshotter
    seconds: list[float] = field(default_factory=list)

    def support(self, *, tried: bool = True) -> Support:
        """As the contract says."""
        return self.real.support(tried=tried)

    def dump(self, tree: Tree, folder: Path, *, stop: bool) -> None:
        """As the contract says."""
        began = time.perf_counter()
        self.real.dump(tree, folder, stop=stop)
        self.seconds.append(time.perf_counter() - began)

    def restore_argv(self) -> list[str]:
        """As the contract says."""
        return self.real.restore_argv()


@dataclass(slots=True, kw_only=True)
class Found:
    """Seconds of one kind of learner, by image."""

    still: list[float] = field(default_factory=list)
    dump: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    with_image: list[float] = field(default_factory=list)
    without: list[float] = field(default_factory=list)
    image_bytes: list[float] = field(default_factory=list)


def measure() -> Iterator[Figure]:
    """ROUNDS images of each kind of learner, and as many beginnings in each way."""
    before = dict(os.environ)
    for name, learner in LEARNERS.items():
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
            os.environ |= {
                "ROLLOUT_HOME": f"{folder}/home",
                "XDG_CONFIG_HOME": f"{folder}/config",
                "ROLLOUT_CRIU": str(criu_of_tests.ensure()),
            }
            try:
                found = _measure(Path(folder), learner)
            finally:
                os.environ.clear()
                os.environ.update(before)
        yield from _figures(name, found)


def _figures(name: str, found: Found) -> Iterator[Figure]:
    yield level(f"{name}: training stands still for an image", found.still, "s", "info")
    yield level(f"{name}: of that, CRIU's dump", found.dump, "s", "info")
    yield level(f"{name}: snapshot create --include process", found.whole, "s", "info")
    yield level(f"{name}: stored bytes of the image", found.image_bytes, "MB", "info")
    yield level(f"{name}: to the first commit, with the image", found.with_image, "s", "info")
    yield level(f"{name}: to the first commit, without it", found.without, "s", "info")
    yield ratio(f"{name}: beginning with the image", found.with_image, found.without, "info")


def _measure(folder: Path, learner: dict[str, Any]) -> Found:
    found = Found()
    rows = [{"prompt": f"1{n}+11=", "answer": f"0{21 + n}"} for n in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for number in range(ROUNDS):
        made = _image(folder, f"imaged-{number}", learner, found)
        for include in (IMAGED, PLAIN) if number % 2 else (PLAIN, IMAGED):
            kind = "image" if include is IMAGED else "plain"
            into = found.with_image if include is IMAGED else found.without
            into.append(_begin_with(folder, f"{kind}-{number}", learner, made, include))
    return found


def _image(folder: Path, name: str, learner: dict[str, Any], found: Found) -> Manifest:
    criu = TimedCriu(real=find_criu(os.environ))
    with _run(folder, name, learner, IMAGED) as (process, run):
        _wait(process, run, STEPS_BEFORE)
        place, signer = place_of_run(run), open_signer(key_path(os.environ))
        at, began = time.time(), time.perf_counter()
        with learner_imaged(run, place, criu) as image:
            made = create_snapshot(run, signer, step=image.step, place=place, beside=image.take)
        found.whole.append(time.perf_counter() - began)
        _wait(process, run, image.step + STEPS_AFTER)
        times = [step.committed_at for step in steps_of(run)]
    gaps = [(later, later - earlier) for earlier, later in pairwise(times)]
    usual = statistics.median(gap for _, gap in gaps)
    found.still.append(max(gap for later, gap in gaps if later > at) - usual)
    found.dump += criu.seconds
    layer = made.manifest.layer("process")
    assert layer is not None, "an image was asked for"
    found.image_bytes.append(layer.size_bytes / 1e6)
    return made.manifest


def _begin_with(
    folder: Path, name: str, learner: dict[str, Any], made: Manifest, include: Sequence[str]
) -> float:
    """Seconds from the command to the first commit after the snapshot's step."""
    at = time.time()
    with _run(folder, name, learner, include, "--resume", made.id) as (process, run):
        _wait(process, run, made.header.step + 1)
        first = next(one for one in steps_of(run) if one.step > made.header.step)
    said = (folder / f"{name}.out").read_text()
    assert ("the learner came back from its image" in said) == (include is IMAGED), said
    return first.committed_at - at


@contextmanager
def _run(
    folder: Path, name: str, learner: dict[str, Any], include: Sequence[str], *words: str
) -> Iterator[tuple[subprocess.Popen[bytes], RunDir]]:
    """``rollout run`` of a new run; told to end with the block."""
    spec = {
        "seed": 7,
        "model": {"uri": MODEL},
        "learner": learner,
        "train": {
            "algorithm": {"sft": {"batchSize": 4, "maxLength": 64}},
            "data": {"jsonl": {"uri": "rows.jsonl"}},
            "maxSteps": 100_000,
        },
        "numerics": {"mode": "Exact"},
        "snapshots": {"everySteps": 50, "include": list(include)},
    }
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps({**head, "metadata": {"name": name}, "spec": spec}))
    with (folder / f"{name}.out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rollout", "run", "-f", str(file), *words],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    try:
        yield process, RunDir(path=folder / "home" / f"{name}-1")
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], run: RunDir, step: int) -> None:
    """Until a step is committed."""
    deadline = time.monotonic() + MOVE_SECONDS_MAX
    while not any(one.step >= step for one in steps_of(run)):
        assert process.poll() is None, f"{run.path} has ended"
        assert time.monotonic() < deadline, f"step {step} was not reached"
        time.sleep(0.1)
