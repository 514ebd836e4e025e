"""The learner's state: made durable, vouched for by a snapshot, and restored with every byte verified."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from figures import Figure, level, ratio

from rollout.common.atomic_files import fsync_folder
from rollout.learner.checkpoint import (
    AnchorPlace,
    CapturedState,
    copy_groups,
    load_object,
    write_anchor,
)
from rollout.ledger.cuts import LedgerCut
from rollout.ledger.records import AnchorManifest
from rollout.objects.filesystem import FilesystemStore
from rollout.objects.named.folder import FolderObjects
from rollout.snapshots.layers.contract import Moment
from rollout.snapshots.layers.registry import TRAIN_STATE
from rollout.snapshots.manifest import Manifest, RunFacts, SnapshotHeader
from rollout.snapshots.place import SnapshotPlace
from rollout.snapshots.saving import save_snapshot
from rollout.snapshots.signing import Signer, open_signer
from rollout.types import WeightVersion
from rollout.weights.staging import Staging

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
TENSOR_BYTES = 16 << 20
State = dict[str, dict[str, torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one turn: wall and CPU seconds, of all threads of this process."""

    seconds: float
    cpu: float


def measure(num_bytes: int) -> Iterator[Figure]:
    """Every contender once a round, in turns."""
    torch.manual_seed(7)
    state = _make_state(num_bytes)
    where = os.environ.get("BENCH_DIR")
    with tempfile.TemporaryDirectory(dir=where, prefix="bench-snapshots-") as name:
        folder, gigabytes = Path(name), num_bytes / 2**30
        yield from _saving(folder, state, gigabytes)
        yield from _restoring(folder, state, gigabytes)


def _saving(folder: Path, state: State, gigabytes: float) -> Iterator[Figure]:
    copy = {name: {k: v.clone() for k, v in part.items()} for name, part in state.items()}
    staging = Staging()
    sides: dict[str, Callable[[Path], object]] = {
        "raw write and fsync": lambda to: _write_raw(to, state),
        "ours": lambda to: _save_anchor(to, state),
        "torch.save and fsync": lambda to: _torch_save(to, state),
        "torch DCP": lambda to: dcp.save(_flat(state), checkpoint_id=to / "dcp", no_dist=True),
        "memcpy": lambda to: _copy(copy, state),
        "staging": lambda to: _stage(staging, state),
        "torch DCP async_save": lambda to: dcp.async_save(_flat(state), checkpoint_id=to / "dcp"),
    }
    with _group_of_one():
        costs = _turns(folder, sides)
    ours, stall = _seconds(costs["ours"]), _seconds(costs["staging"])
    for name, bar in (
        ("raw write and fsync", ">= 0.9"),
        ("torch.save and fsync", ">= 1"),
        ("torch DCP", ">= 1"),
    ):
        yield ratio(f"durable save against {name}", ours, _seconds(costs[name]), bar)
    for name, bar in (("memcpy", ">= 0.667"), ("torch DCP async_save", ">= 2")):
        yield ratio(f"stall of a save against {name}", stall, _seconds(costs[name]), bar)
    for name, spent in costs.items():
        per = [one.cpu / gigabytes for one in spent]
        yield level(f"save, CPU: {name}", per, "s/GiB", "info")


def _restoring(folder: Path, state: State, gigabytes: float) -> Iterator[Figure]:
    kept = folder / "kept"
    anchor, signer = _save_anchor(kept, state), open_signer(folder / "key")
    files = [p for p in (kept / "objects").rglob("*") if p.is_file() and p.stat().st_size > 1 << 20]
    buffers = [memoryview(bytearray(path.stat().st_size)) for path in files]
    target = {name: {k: v.clone() for k, v in part.items()} for name, part in state.items()}
    sides: dict[str, Callable[[Path], object]] = {
        "raw read": lambda _: _read_raw(files, buffers),
        "ours": lambda _: _restore(kept, anchor, target),
        "snapshot of an anchor": lambda _: _snapshot(kept, anchor, signer),
    }
    costs = _turns(folder, sides, before=lambda: _drop_caches(files))
    raw = _seconds(costs["raw read"])
    yield ratio(
        "restore with verification against raw read", _seconds(costs["ours"]), raw, ">= 0.9"
    )
    made = _seconds(costs["snapshot of an anchor"])
    yield ratio("snapshot of an anchor against raw read", made, raw, "info")
    for name, spent in costs.items():
        per = [one.cpu / gigabytes for one in spent]
        yield level(f"restore, CPU: {name}", per, "s/GiB", "info")


def _turns(
    folder: Path, sides: dict[str, Callable[[Path], object]], before: Callable[[], None] = os.sync
) -> dict[str, list[Cost]]:
    """What each side took, a round after the other; the first round warms up and does not count."""
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    for number in range(ROUNDS + 1):
        for name, run in sides.items():
            place = folder / "turn"
            FilesystemStore(place / "objects").put(b"a run's first object makes the folders of all")
            before()
            began, cpu = time.perf_counter(), time.process_time()
            pending = run(place)
            cost = Cost(seconds=time.perf_counter() - began, cpu=time.process_time() - cpu)
            if isinstance(pending, Future):
                pending.result()  # outside the time: only the caller's wait counts
            shutil.rmtree(place)
            if number:
                costs[name].append(cost)
    return costs


@contextmanager
def _group_of_one() -> Iterator[None]:
    """``async_save`` wants a process group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _make_state(num_bytes: int) -> State:
    count = max(1, num_bytes // 3 // TENSOR_BYTES)
    rows = num_bytes // 3 // count // 4

    def make(*entries: str) -> dict[str, torch.Tensor]:
        return {f"layer.{i}/{e}": torch.randn(rows) for i in range(count) for e in entries}

    return {"weights": make("weight"), "optimizer": make("exp_avg", "exp_avg_sq")}


def _flat(state: State) -> dict[str, torch.Tensor]:
    return {f"{name}/{key}": one for name, part in state.items() for key, one in part.items()}


def _write_raw(folder: Path, state: State) -> None:
    with (folder / "raw").open("wb", buffering=0) as file:
        for tensor in _flat(state).values():
            left = memoryview(tensor.numpy()).cast("B")
            while left:
                left = left[file.write(left) :]
        os.fsync(file.fileno())
    fsync_folder(folder)


def _torch_save(folder: Path, state: State) -> None:
    with (folder / "state.pt").open("wb") as file:
        torch.save(_flat(state), file)
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(folder)


def _stage(staging: Staging, state: State) -> None:
    """All that training waits for, from the second anchor on."""
    copies = staging.place(state)
    assert copies is not None, "no memory for a copy"
    copy_groups(state, copies)


def _save_anchor(folder: Path, state: State) -> AnchorManifest:
    """As the learner's thread does it: objects first, the manifest last."""
    name = "blake3:" + "0" * 64
    version = WeightVersion(lineage=0, step=1, digest=name, object=name)
    manifest = AnchorManifest(
        name="step-000001",
        lineage=0,
        step=1,
        chain="chain",
        version=version,
        objects={},
        state={"format": 1, "identity": {}, "cursor": {}},
        created_at=1.0,
    )
    place = AnchorPlace(
        store=FilesystemStore(folder / "objects"), snapshots_dir=folder / "snapshots"
    )
    anchor = write_anchor(
        place, CapturedState(tensors=state, random_states=b"rng", manifest=manifest)
    )
    served = replace(version, object=anchor.objects["weights"])
    return msgspec.structs.replace(anchor, version=served)


def _snapshot(folder: Path, anchor: AnchorManifest, signer: Signer) -> Manifest:
    """As ``rollout snapshot create``: every object is read, each tensor has a digest."""
    store = FilesystemStore(folder / "objects")
    place = SnapshotPlace(store=store, named=FolderObjects(folder / "objects"))
    moment = Moment(anchor=anchor, cut=_nothing_waits(), grade="exact", source=store)
    return save_snapshot(place, header_of_bench(anchor.step), [TRAIN_STATE.take(moment)], signer)


def _restore(folder: Path, anchor: AnchorManifest, target: State) -> None:
    """As a learner alone does it: masters take the weights over, an optimizer's new entries are its state."""
    store = FilesystemStore(folder / "objects")
    for name, part in target.items():
        found = load_object(store, anchor.objects[name])
        if name == "weights":
            _copy({name: part}, {name: found})


def _copy(target: State, source: State) -> None:
    for name, part in target.items():
        for key, tensor in part.items():
            tensor.copy_(source[name][key])


def _read_raw(files: list[Path], buffers: list[memoryview]) -> None:
    for path, buffer in zip(files, buffers, strict=True):
        left = buffer
        with path.open("rb", buffering=0) as file:
            while left and (count := file.readinto(left)):
                left = left[count:]


def _drop_caches(files: list[Path]) -> None:
    """Of these files only: others work on this machine."""
    os.sync()
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _nothing_waits() -> LedgerCut:
    return LedgerCut(
        lineage=0,
        step=1,
        first_waiting=0,
        next_admitted=0,
        exhausted=True,
        rewound=False,
        num_leased=0,
        versions={},
        tables={},
    )


def header_of_bench(step: int) -> SnapshotHeader:
    """Of a snapshot of nobody's run."""
    return SnapshotHeader(
        created_at=time.time(),
        label="",
        run=RunFacts(
            name="bench",
            namespace="default",
            uid="bench",
            algorithm="grpo",
            spec_digest="blake3:" + "0" * 64,
            identity_format=2,
            identity={},
            contents={},
            dtype="Float32",
            threads=1,
        ),
        lineage=0,
        step=step,
        chain="chain",
        grade="exact",
        runtime={},
    )


def _seconds(costs: list[Cost]) -> list[float]:
    return [one.seconds for one in costs]
