"""Pages of a learner's memory saved sealed and signed, beside restic, which encrypts, too: one tree, in turns, into empty places.

The pages are float32 numbers, as weights and optimizer states are: nothing in them is equal, and little can be compressed.
The second save is of the same tree after one page in a hundred was written anew.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from figures import Figure, level, ratio
from snapshots_state import header_of_bench

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY / "e2e")]

from cluster import build, pins
from rollout.objects.filesystem import FilesystemStore
from rollout.objects.named.folder import FolderObjects
from rollout.snapshots.manifest import Manifest
from rollout.snapshots.place import SnapshotPlace
from rollout.snapshots.processes.image import ImageFacts, pack_dump
from rollout.snapshots.processes.pages import PAGE_BYTES
from rollout.snapshots.processes.sealing import open_sealer
from rollout.snapshots.saving import save_snapshot
from rollout.snapshots.signing import open_signer

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
CHANGED_EVERY = 100
FACTS = ImageFacts(root=1, pipe=1, argv=("bench",), digest="", files=())
Cost = tuple[float, float]
"""Wall and CPU seconds."""


def measure(num_bytes: int) -> Iterator[Figure]:
    """First and second saves; the first round warms up and does not count."""
    build.ensure(pins.BACKUPS)
    costs: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        for number in range(ROUNDS + 1):
            for side, cost in _round(Path(name) / f"round-{number}", num_bytes, number).items():
                if number:
                    costs.setdefault(side, []).append(cost)
    for which, bar in (("first", ">= 5"), ("second", "info")):
        ours, theirs = ([c[0] for c in costs[f"{which} {side}"]] for side in ("ours", "restic"))
        yield ratio(f"{which} sealed save of pages against restic", ours, theirs, bar)
    for side, found in costs.items():
        per = [cpu / num_bytes * 2**30 for _, cpu in found]
        yield level(f"sealed save, CPU: {side}", per, "s/GiB", "info")


def _round(folder: Path, num_bytes: int, number: int) -> dict[str, Cost]:
    """Both sides save a tree into empty places, and again what has become of it; who begins alternates."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    pages = tree / "pages-1.img"
    draw = np.random.default_rng(number)
    draw.standard_normal(num_bytes // PAGE_BYTES * PAGE_BYTES // 4, dtype="<f4").tofile(pages)
    sides = {"ours": _ours(folder, tree), "restic": _restic(folder, tree)}
    order = list(sides)[:: 1 if number % 2 else -1]
    costs: dict[str, Cost] = {}
    for which in ("first", "second"):
        for side in order:
            costs[f"{which} {side}"] = _timed(sides[side])
        _change(pages, draw)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.chmod(0o700)
        path.rmdir() if path.is_dir() else path.unlink()
    return costs


def _change(pages: Path, draw: np.random.Generator) -> None:
    data = np.memmap(pages, dtype="<f4", mode="r+").reshape(-1, PAGE_BYTES // 4)
    new = data[::CHANGED_EVERY]
    new[:] = draw.standard_normal(new.shape, dtype="<f4")
    data.flush()


def _ours(folder: Path, tree: Path) -> Callable[[], object]:
    """As ``rollout process save`` packs, seals, stores and signs what was dumped."""
    key, store = folder / "key", FilesystemStore(folder / "objects")
    place = SnapshotPlace(store=store, named=FolderObjects(folder / "objects"))
    signer, sealer = open_signer(key), open_sealer(key, "", "bench")
    made: list[Manifest] = []

    def save() -> None:
        base = made[-1].layer("process") if made else None
        packed = pack_dump(tree, FACTS, sealer, store, base, 1)
        made.append(save_snapshot(place, header_of_bench(len(made)), [packed.taken], signer))

    return save


def _restic(folder: Path, tree: Path) -> Callable[[], object]:
    settings = {
        "RESTIC_PASSWORD": "bench",
        "RESTIC_REPOSITORY": str(folder / "repository"),
        "RESTIC_CACHE_DIR": str(folder / "cache"),
    }

    def run(*words: str) -> None:
        command = [str(build.path("restic")), "--quiet", *words]
        subprocess.run(command, env={**os.environ, **settings}, check=True)

    run("init")
    return lambda: run("backup", str(tree))


def _timed(work: Callable[[], object]) -> Cost:
    os.sync()
    began, cpu = time.perf_counter(), _cpu_seconds()
    work()
    return time.perf_counter() - began, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    """Of this process and of all that it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)
