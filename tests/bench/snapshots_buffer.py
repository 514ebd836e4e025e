"""The buffer of a run: what a second snapshot adds, and what a thousandth costs beside one of the first."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from figures import Figure, level

TESTS = Path(__file__).parents[1] / "rollout"
sys.path[:0] = [str(TESTS / "ledger"), str(TESTS / "snapshots")]

from ledger_kit import IDENTITY, Clock, admission, claim_request, ended, started, step_commit
from ledger_kit import trajectory as small
from snapshot_kit import save_state, snapshot

from rollout.ledger.records import AttemptEnd, Lease, Limits
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.objects.filesystem import FilesystemStore
from rollout.snapshots.manifest import Manifest, encode_manifest
from rollout.snapshots.signing import Signer, open_signer

TOKENS = 1024
WAITING, TAKEN = 256, 32
"""Finished groups that wait, and how many of them a step takes."""
SNAPSHOTS = int(os.environ.get("BENCH_SNAPSHOTS", "1000"))
ANCHORS_KEPT = 3
WINDOW = 10


def measure() -> Iterator[Figure]:
    """Bytes of two snapshots a step apart; CPU of the last ten of many beside that of the second ten."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        yield from asyncio.run(_second(Path(name)))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        yield asyncio.run(_many(Path(name)))


async def _second(folder: Path) -> list[Figure]:
    store, signer = FilesystemStore(folder / "objects"), open_signer(folder / "key")
    ledger = SqliteLedger(folder / "ledger.db", IDENTITY, Limits(), Clock())
    learner, actor = await started(ledger, WAITING)
    await _sample(ledger, actor, 0)
    made = []
    for step in (1, 2):
        first = TAKEN * (step - 1)
        await ledger.admit(admission(WAITING + first, WAITING + first + TAKEN))
        fresh = await _sample(ledger, actor, step - 1)
        await ledger.commit(step_commit(step, range(first, first + TAKEN), learner))
        await ledger.save_anchor(learner, save_state(store, step))
        made.append(snapshot(folder, signer))
    await ledger.close()
    before, after = (_buffer_bytes(one) for one in made)
    new = sum(size for digest, size in after.items() if digest not in before)
    whole = sum(after.values())
    return [
        _fact("second buffer snapshot, over new data", new / fresh, "x", "<= 1.01"),
        _fact("second buffer snapshot, rows again", (new - fresh) / whole, "of buffer", "<= 0.01"),
        _fact("bytes of a buffer", whole, "B", "info"),
        _fact("bytes of a manifest", len(encode_manifest(made[-1])), "B", "info"),
        _fact("objects of a snapshot", len(made[-1].objects), "files", "info"),
    ]


async def _many(folder: Path) -> Figure:
    """A run that goes on: a step, an anchor, a snapshot; it keeps three anchors, as runs do, and every snapshot."""
    store, signer = FilesystemStore(folder / "objects"), open_signer(folder / "key")
    ledger = SqliteLedger(folder / "ledger.db", IDENTITY, Limits(), Clock())
    learner, actor = await started(ledger, 2)
    spent = []
    for step in range(1, SNAPSHOTS + 1):
        await ledger.admit(admission(2 * step, 2 * step + 2))
        await _sample(ledger, actor, step - 1, tokens=16)
        retired = ((0, step - ANCHORS_KEPT),) if step > ANCHORS_KEPT else ()
        commit = step_commit(step, range(2 * step - 2, 2 * step), learner, retired=retired)
        await ledger.commit(commit)
        await ledger.save_anchor(learner, save_state(store, step))
        if step > ANCHORS_KEPT:
            await ledger.delete_anchors([(0, step - ANCHORS_KEPT)])
        spent.append(_cpu(folder, signer))
    await ledger.close()
    pairs = [b / a for a, b in zip(spent[10:20], spent[-WINDOW:], strict=True)]
    return level(f"CPU of the last of {SNAPSHOTS} snapshots over 11-20", pairs, "x", "<= 1.1")


def _cpu(folder: Path, signer: Signer) -> float:
    began = time.process_time()
    snapshot(folder, signer)
    return time.process_time() - began


async def _sample(ledger: SqliteLedger, actor: int, step: int, tokens: int = TOKENS) -> int:
    """Finish every open task; bytes of their bodies."""
    leases = (await ledger.claim(claim_request("actor-0", actor, step=step, tasks_max=512))).leases
    ends = [_finished(lease, tokens) for lease in leases]
    await ledger.submit("actor-0", actor, ends)
    return sum(len(end.body or b"") for end in ends)


def _finished(lease: Lease, tokens: int) -> AttemptEnd:
    draw = random.Random(lease.task.task_id)
    made = [
        replace(
            small(lease.task.ordinal, sample, step=lease.version_step),
            token_ids=tuple(draw.randrange(32000) for _ in range(tokens)),
            actor_logprobs=tuple(-draw.random() for _ in range(tokens)),
            loss_mask=(1,) * tokens,
        )
        for sample in range(lease.task.num_samples)
    ]
    return ended(lease, made)


def _buffer_bytes(manifest: Manifest) -> dict[str, int]:
    layer = manifest.layer("buffer")
    assert layer is not None
    return {part.object: part.size_bytes for part in layer.parts if "version/" not in part.name}


def _fact(name: str, value: float, unit: str, bar: str) -> Figure:
    """Counted, not timed: its interval is the value."""
    return Figure(name=name, value=value, unit=unit, bar=bar, low=value, high=value)
