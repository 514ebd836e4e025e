"""A ledger of many trajectories, made fast and kept: the real writer, without flushing, steps as a run commits them.

Groups of ``SAMPLES`` samples of ``TOKENS`` tokens, ``GROUPS`` a step. The rows are those that a coordinator writes
for the same results, because the same transactions write them; only the disk is not waited for. A ledger is
kept under the user's cache by what made it: this file, the ledger's code and the codec.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from blake3 import blake3
from fake_run import GROUPS, IDENTITY, SAMPLES

KIT = Path(__file__).parents[1] / "rollout" / "ledger"
sys.path.append(str(KIT))

from ledger_kit import ended

import rollout
from rollout.ledger.records import (
    Admission,
    AnchorManifest,
    AttemptEnd,
    ClaimRequest,
    Cursor,
    Disposition,
    Lease,
    NewTask,
    StepCommit,
)
from rollout.ledger.sql.ledger import SqlLedger
from rollout.ledger.sqlite.opening import open_connection
from rollout.ledger.sqlite.writer import Writer
from rollout.models.files import default_cache_dir
from rollout.objects.filesystem import FilesystemStore
from rollout.types import Trajectory, VersionSpan, WeightVersion

TOKENS = 100
ANCHOR_EVERY, ANCHORS_KEPT = 100, 2
LEASE_SECONDS = 30.0
VERSIONS_KEPT = 3
OBJECT = b"w" * 4096
METRICS = {f"metric_{number}": 0.123456 * number for number in range(40)}
"""As many as a step of GRPO has."""
SOURCES = ("ledger/**/*.py", "ledger/**/*.sql", "codec.py", "types.py")
BEGAN = 1.7e9


def get_ledger(num_trajectories: int) -> tuple[Path, float]:
    """A folder with ``ledger.db`` and ``objects``, and the seconds that making it took: 0 where it was there."""
    steps = -(-num_trajectories // (GROUPS * SAMPLES))
    folder = default_cache_dir() / "bench" / f"ledger-{steps}-{_source_digest()}"
    if folder.is_dir():
        return folder, 0.0
    began = time.perf_counter()
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    fresh.mkdir(parents=True)
    try:
        asyncio.run(write_run(fresh, steps, time.time))
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder, time.perf_counter() - began


def copy_ledger(source: Path, target: Path) -> Path:
    """A copy that a coordinator may write to."""
    shutil.copytree(source, target)
    return target


def _source_digest() -> str:
    package = Path(rollout.__file__).parent
    files = [Path(__file__), Path(__file__).with_name("fake_run.py"), KIT / "ledger_kit.py"]
    files += sorted(path for pattern in SOURCES for path in package.glob(pattern))
    content = blake3()
    for path in files:
        content.update(path.read_bytes())
    return content.hexdigest()[:16]


def open_unflushed(path: Path, clock: Callable[[], float]) -> SqlLedger:
    """The ledger over its real writer, without waiting for the disk; what a crash would leave is no ledger."""
    connection, _lock = open_connection(path, IDENTITY)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA synchronous = OFF")
    return SqlLedger(IDENTITY, None, Writer(connection, path, clock))


async def write_run(folder: Path, steps: int, clock: Callable[[], float]) -> None:
    """A run of ``steps`` committed steps whose next tasks are admitted."""
    objects = FilesystemStore(folder / "objects")
    weights = objects.put(OBJECT)
    ledger = open_unflushed(folder / "ledger.db", clock)
    actor = (await ledger.register("actor-0", "actor")).incarnation
    learner = (await ledger.register("learner", "learner")).incarnation
    await ledger.publish_initial(learner, name_version(0, weights), "")
    await ledger.admit(admit(1))
    anchors: list[tuple[int, int]] = []
    for step in range(1, steps + 1):
        ends = [end_group(lease) for lease in await _claim(ledger, actor, step)]
        await ledger.submit("actor-0", actor, ends)
        await ledger.commit(_commit(step, learner, weights))
        if step % ANCHOR_EVERY == 0:
            await ledger.save_anchor(learner, _anchor(step, weights))
            anchors.append((0, step))
            await ledger.delete_anchors(anchors[:-ANCHORS_KEPT])
            del anchors[:-ANCHORS_KEPT]
    await ledger.set_tracked(steps)
    await ledger.close()


def name_version(step: int, weights: str) -> WeightVersion:
    """Versions of one object: nobody loads them."""
    return WeightVersion(lineage=0, step=step, digest=weights, object=weights)


def name_chain(step: int) -> str:
    """A chain value of its own for each step."""
    return f"blake3:{step:064x}"


def ordinals_of(step: int) -> range:
    """The tasks that a step takes."""
    return range((step - 1) * GROUPS, step * GROUPS)


def admit(step: int) -> Admission:
    """The tasks of one step."""
    tasks = tuple(
        NewTask(task_id=f"t/{ordinal}", kind="train", ordinal=ordinal, num_samples=SAMPLES)
        for ordinal in ordinals_of(step)
    )
    return Admission(tasks=tasks, next_admitted=step * GROUPS)


async def _claim(ledger: SqlLedger, actor: int, step: int) -> Sequence[Lease]:
    ask = ClaimRequest(
        worker="actor-0",
        incarnation=actor,
        tasks_max=GROUPS,
        held=(),
        lease_seconds=LEASE_SECONDS,
        lineage=0,
        step=step - 1,
        ordinal_end=step * GROUPS,
    )
    return (await ledger.claim(ask)).leases


def draw_trajectories(ordinal: int, step: int) -> tuple[Trajectory, ...]:
    """The samples of one task, equal for everybody who asks; ``step`` is that of their version."""
    draw = np.random.default_rng(ordinal)
    tokens = draw.integers(0, 150_000, (SAMPLES, TOKENS)).tolist()
    logprobs = (-2 * draw.random((SAMPLES, TOKENS), dtype=np.float32)).tolist()
    prompt = tuple(range(ordinal % 100, ordinal % 100 + 20))
    return tuple(
        Trajectory(
            ordinal=ordinal,
            sample=sample,
            prompt_ids=prompt,
            token_ids=tuple(tokens[sample]),
            actor_logprobs=tuple(logprobs[sample]),
            loss_mask=(1,) * TOKENS,
            spans=(VersionSpan(start=0, end=TOKENS, lineage=0, step=step),),
            rewards={"exact-match": float(sample % 2)},
            reward=float(sample % 2),
            ending="stop",
            text=f"the answer to {ordinal} is {sample}",
            prompt_text=f"{ordinal}+{ordinal}=",
            answer=str(2 * ordinal),
            timings={"generate": 0.01, "score": 0.001},
        )
        for sample in range(SAMPLES)
    )


def end_group(lease: Lease) -> AttemptEnd:
    """What a coordinator makes of a group that came back whole."""
    made = draw_trajectories(lease.task.ordinal, lease.version_step)
    return ended(lease, made)


def _commit(step: int, learner: int, weights: str) -> StepCommit:
    return StepCommit(
        incarnation=learner,
        lineage=0,
        step=step,
        dispositions=tuple(_consume(step)),
        rows=(),
        plan={},
        version=name_version(step, weights),
        chain=name_chain(step),
        cursor=Cursor(next_ordinal=step * GROUPS),
        metrics={"step": step, "lineage": 0, **METRICS},
        phase_seconds={"train": 0.01},
        admission=admit(step + 1),
        retired=((0, step - VERSIONS_KEPT),) if step > VERSIONS_KEPT else (),
    )


def _consume(step: int) -> Iterator[Disposition]:
    place = 0
    for ordinal in ordinals_of(step):
        for sample in range(SAMPLES):
            yield Disposition(task_id=f"t/{ordinal}", sample=sample, kind="consumed", place=place)
            place += 1


def _anchor(step: int, weights: str) -> AnchorManifest:
    return AnchorManifest(
        name=f"step-{step:06d}",
        lineage=0,
        step=step,
        chain=name_chain(step),
        version=name_version(step, weights),
        objects={"weights": weights},
    )
