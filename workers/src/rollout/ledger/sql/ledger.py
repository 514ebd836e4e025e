"""The ledger contract on any database that runs the shared SQL. See ``rollout.ledger.contract``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from rollout.ledger.cuts import Cells, LedgerCut
from rollout.ledger.records import (
    Admission,
    AnchorManifest,
    AttemptEnd,
    ClaimRequest,
    Claims,
    Disposition,
    LedgerState,
    LifeNote,
    Limits,
    MemoryPart,
    Registration,
    Removal,
    RunIdentity,
    StepBatch,
    StepCommit,
    StepRecord,
    Verdict,
)
from rollout.ledger.sql import cutting, lives, loading, removing, steps, submitting, tasks
from rollout.ledger.sql.memory import pruning, rows
from rollout.ledger.sql.memory.rows import Place
from rollout.ledger.sql.transaction import Operation, Runner, Transaction
from rollout.ledger.views import LifeView
from rollout.types import WeightVersion

T = TypeVar("T")


class SqlLedger:
    """One run's ledger; ``runner`` makes transactions of its operations."""

    def __init__(self, identity: RunIdentity, limits: Limits | None, runner: Runner) -> None:
        self.identity = identity
        self._limits = limits or Limits()
        self._runner = runner

    @property
    def position(self) -> int:
        """How many writes were acknowledged."""
        return self._runner.position

    async def _write(self, operation: Operation[T], *, shares: bool = False) -> T:
        return await asyncio.wrap_future(self._runner.write(operation, shares=shares))

    async def _read(self, operation: Operation[T]) -> T:
        return await asyncio.wrap_future(self._runner.read(operation))

    async def load(self) -> LedgerState:
        """See the contract."""
        return await self._read(loading.load)

    async def restore(self, cut: LedgerCut, reason: str) -> None:
        """See the contract."""
        await self._write(lambda tx: cutting.restore_cut(tx, cut, reason))

    async def go_back(self, anchor: AnchorManifest, reason: str, memory: Cells = ()) -> int:
        """See the contract."""
        return await self._write(lambda tx: cutting.go_back(tx, anchor, reason, memory))

    async def rearm(self, lease_seconds: float) -> int:
        """See the contract."""
        return await self._write(lambda tx: tasks.rearm(tx, lease_seconds))

    async def register(
        self, worker: str, role: str, *, pid: int = 0, host: str = ""
    ) -> Registration:
        """See the contract."""
        return await self._write(
            lambda tx: tasks.register(tx, self._limits, worker, role, pid, host)
        )

    async def admit(self, admission: Admission) -> None:
        """See the contract."""
        await self._write(lambda tx: tasks.admit(tx, admission))

    async def claim(self, request: ClaimRequest) -> Claims:
        """See the contract."""
        return await self._write(lambda tx: tasks.claim(tx, self._limits, request))

    async def renew(
        self, worker: str, incarnation: int, task_ids: Sequence[str], lease_seconds: float
    ) -> tuple[str, ...]:
        """See the contract."""
        return await self._write(
            lambda tx: tasks.renew(tx, worker, incarnation, task_ids, lease_seconds)
        )

    async def submit(
        self, worker: str, incarnation: int, ends: Sequence[AttemptEnd]
    ) -> tuple[Verdict, ...]:
        """See the contract."""
        return await self._write(
            lambda tx: submitting.submit(tx, self._limits, worker, incarnation, ends), shares=True
        )

    async def expire(self, task_ids: Sequence[str]) -> tuple[str, ...]:
        """See the contract."""
        return await self._write(lambda tx: tasks.expire(tx, task_ids))

    async def prefixes_of(self, task_ids: Sequence[str]) -> dict[str, bytes]:
        """See the contract."""
        return await self._read(lambda tx: loading.read_prefixes(tx, task_ids))

    async def memory_of(self, lineage: int, step: int, after: Place) -> MemoryPart:
        """See the contract."""
        return await self._read(lambda tx: rows.read_part(tx, lineage, step, after))

    async def prune_memory(self, step: int) -> bool:
        """See the contract."""
        return await self._write(lambda tx: pruning.prune(tx, step))

    async def publish_initial(self, incarnation: int, version: WeightVersion, chain: str) -> None:
        """See the contract."""
        await self._write(lambda tx: steps.publish_initial(tx, incarnation, version, chain))

    async def store_again(self, incarnation: int, version: WeightVersion) -> None:
        """See the contract."""
        await self._write(lambda tx: steps.store_again(tx, incarnation, version))

    async def commit(self, commit: StepCommit) -> tuple[Claims | None, ...]:
        """See the contract."""

        def write(tx: Transaction) -> tuple[Claims | None, ...]:
            steps.commit(tx, commit)
            return tasks.claim_beside(tx, self._limits, commit.claims)

        return await self._write(write)

    async def record(self, step: int) -> StepRecord | None:
        """See the contract."""
        return await self._read(lambda tx: loading.record_of(tx, step))

    async def records_after(self, step: int) -> tuple[StepRecord, ...]:
        """See the contract."""
        return await self._read(lambda tx: loading.records_after(tx, step))

    async def batch_of(self, step: int) -> StepBatch:
        """See the contract."""
        return await self._read(lambda tx: loading.batch_of(tx, step))

    async def evaluation_rewards(
        self, name: str, split: str, lineage: int, step: int
    ) -> Mapping[int, Sequence[Mapping[str, float]]]:
        """See the contract."""
        key = (name, split, lineage, step)
        return await self._read(lambda tx: loading.evaluation_rewards(tx, key))

    async def metrics_after(self, step: int) -> tuple[tuple[int, int, dict[str, Any]], ...]:
        """See the contract."""
        return await self._read(lambda tx: loading.metrics_after(tx, step))

    async def fork(
        self, incarnation: int, base_step: int, version: WeightVersion, chain: str, reason: str
    ) -> int:
        """See the contract."""
        return await self._write(
            lambda tx: steps.fork(tx, incarnation, base_step, version, chain, reason)
        )

    async def save_anchor(self, incarnation: int, manifest: AnchorManifest) -> None:
        """See the contract."""
        await self._write(lambda tx: steps.save_anchor(tx, incarnation, manifest))

    async def delete_anchors(self, anchors: Sequence[tuple[int, int]]) -> None:
        """See the contract."""
        await self._write(lambda tx: steps.delete_anchors(tx, anchors))

    async def remove_bodies(self, step: int, num_max: int) -> Removal:
        """See the contract."""
        return await self._write(lambda tx: removing.remove_bodies(tx, step, num_max))

    async def finish_evaluation(
        self, name: str, split: str, lineage: int, step: int, summary: Mapping[str, Any]
    ) -> None:
        """See the contract."""
        key = (name, split, lineage, step)
        await self._write(lambda tx: steps.finish_evaluation(tx, key, summary))

    async def dispose(self, step: int, dispositions: Sequence[Disposition]) -> None:
        """See the contract."""
        await self._write(lambda tx: steps.dispose(tx, step, dispositions))

    async def set_tracked(self, step: int) -> None:
        """See the contract."""
        await self._write(lambda tx: steps.set_tracked(tx, step))

    async def set_outcome(self, outcome: Mapping[str, str] | None) -> None:
        """See the contract."""
        await self._write(lambda tx: steps.set_outcome(tx, outcome))

    def limit_failures(self, failures_max: int) -> None:
        """See the contract."""
        self._limits = msgspec.structs.replace(self._limits, failures_max=failures_max)

    async def set_settings(self, settings: Mapping[str, Any]) -> None:
        """See the contract."""
        await self._write(lambda tx: steps.set_settings(tx, settings))

    async def worker_ended(self, worker: str, incarnation: int, outcome: str) -> None:
        """See the contract."""
        await self._write(lambda tx: steps.worker_ended(tx, worker, incarnation, outcome))

    async def note_lives(self, notes: Sequence[LifeNote]) -> None:
        """See the contract."""
        await self._write(lambda tx: lives.note_lives(tx, notes))

    async def lives(self) -> tuple[LifeView, ...]:
        """See the contract."""
        return await self._read(lives.read_all)

    async def add_event(self, kind: str, message: str, data: Mapping[str, Any]) -> None:
        """See the contract."""
        await self._write(lambda tx: steps.add_event(tx, kind, message, data))

    async def close(self) -> None:
        """See the contract."""
        await asyncio.to_thread(self._runner.close)
