"""``SqliteLedger``: the ledger contract on one file. See ``rollout.ledger.contract`` for the promises."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rollout.ledger.records import (
    Admission,
    AnchorManifest,
    AttemptEnd,
    ClaimRequest,
    Claims,
    Disposition,
    LedgerState,
    Limits,
    Registration,
    RunIdentity,
    StepBatch,
    StepCommit,
    StepRecord,
    Verdict,
)
from rollout.ledger.sqlite import loading, steps, tasks
from rollout.ledger.sqlite.opening import open_connection
from rollout.ledger.sqlite.writer import Writer
from rollout.types import WeightVersion

T = TypeVar("T")


class SqliteLedger:
    """One run's ledger in one file; a process has it alone. ``clock`` is what leases are judged by."""

    def __init__(
        self,
        path: Path,
        identity: RunIdentity,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.identity = identity
        self._limits = limits or Limits()
        self._clock = clock
        connection, self._lock = open_connection(path, identity)
        connection.row_factory = sqlite3.Row
        self._writer = Writer(connection, path)

    @property
    def position(self) -> int:
        """How many writes were acknowledged."""
        return self._writer.position

    async def _run(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.wrap_future(self._writer.submit(operation))

    async def load(self) -> LedgerState:
        """See the contract."""
        return await self._run(loading.load)

    async def rearm(self, lease_seconds: float) -> int:
        """See the contract."""
        return await self._run(lambda tx: tasks.rearm(tx, self._clock() + lease_seconds))

    async def register(
        self, worker: str, role: str, *, pid: int = 0, host: str = ""
    ) -> Registration:
        """See the contract."""
        return await self._run(
            lambda tx: tasks.register(tx, self._clock(), self._limits, worker, role, pid, host)
        )

    async def admit(self, admission: Admission) -> None:
        """See the contract."""
        await self._run(lambda tx: tasks.admit(tx, self._clock(), admission))

    async def claim(self, request: ClaimRequest) -> Claims:
        """See the contract."""
        return await self._run(lambda tx: tasks.claim(tx, self._clock(), self._limits, request))

    async def renew(
        self, worker: str, incarnation: int, task_ids: Sequence[str], lease_seconds: float
    ) -> tuple[str, ...]:
        """See the contract."""
        return await self._run(
            lambda tx: tasks.renew(tx, worker, incarnation, task_ids, self._clock() + lease_seconds)
        )

    async def submit(
        self, worker: str, incarnation: int, ends: Sequence[AttemptEnd]
    ) -> tuple[Verdict, ...]:
        """See the contract."""
        return await self._run(
            lambda tx: tasks.submit(tx, self._clock(), self._limits, worker, incarnation, ends)
        )

    async def publish_initial(self, incarnation: int, version: WeightVersion, chain: str) -> None:
        """See the contract."""
        await self._run(
            lambda tx: steps.publish_initial(tx, self._clock(), incarnation, version, chain)
        )

    async def commit(self, commit: StepCommit) -> None:
        """See the contract."""
        await self._run(lambda tx: steps.commit(tx, self._clock(), commit))

    async def record(self, step: int) -> StepRecord | None:
        """See the contract."""
        return await self._run(lambda tx: loading.record_of(tx, step))

    async def records_after(self, step: int) -> tuple[StepRecord, ...]:
        """See the contract."""
        return await self._run(lambda tx: loading.records_after(tx, step))

    async def batch_of(self, step: int) -> StepBatch:
        """See the contract."""
        return await self._run(lambda tx: loading.batch_of(tx, step))

    async def metrics_after(self, step: int) -> tuple[tuple[int, int, dict[str, Any]], ...]:
        """See the contract."""
        return await self._run(lambda tx: loading.metrics_after(tx, step))

    async def fork(
        self, incarnation: int, base_step: int, version: WeightVersion, chain: str, reason: str
    ) -> int:
        """See the contract."""
        return await self._run(
            lambda tx: steps.fork(tx, self._clock(), incarnation, base_step, version, chain, reason)
        )

    async def save_anchor(self, incarnation: int, manifest: AnchorManifest) -> None:
        """See the contract."""
        await self._run(lambda tx: steps.save_anchor(tx, self._clock(), incarnation, manifest))

    async def delete_anchors(self, anchors: Sequence[tuple[int, int]]) -> None:
        """See the contract."""
        await self._run(lambda tx: steps.delete_anchors(tx, anchors))

    async def finish_evaluation(
        self, name: str, split: str, lineage: int, step: int, summary: Mapping[str, Any]
    ) -> None:
        """See the contract."""
        key = (name, split, lineage, step)
        await self._run(lambda tx: steps.finish_evaluation(tx, self._clock(), key, summary))

    async def dispose(self, step: int, dispositions: Sequence[Disposition]) -> None:
        """See the contract."""
        await self._run(lambda tx: steps.dispose(tx, self._clock(), step, dispositions))

    async def set_tracked(self, step: int) -> None:
        """See the contract."""
        await self._run(lambda tx: tx.execute("UPDATE run SET tracked_step = ?", (step,)))

    async def set_outcome(self, outcome: Mapping[str, str] | None) -> None:
        """See the contract."""
        await self._run(lambda tx: steps.set_outcome(tx, self._clock(), outcome))

    async def set_settings(self, settings: Mapping[str, Any]) -> None:
        """See the contract."""
        text = json.dumps(dict(settings))
        await self._run(lambda tx: tx.execute("UPDATE run SET settings = ?", (text,)))

    async def worker_ended(self, worker: str, outcome: str) -> None:
        """See the contract."""
        await self._run(
            lambda tx: tx.execute(
                "UPDATE workers SET outcome = ? WHERE worker = ?", (outcome, worker)
            )
        )

    async def add_event(self, kind: str, message: str, data: Mapping[str, Any]) -> None:
        """See the contract."""
        await self._run(lambda tx: steps.add_event(tx, self._clock(), kind, message, data))

    async def close(self) -> None:
        """See the contract."""
        await asyncio.to_thread(self._writer.close)
        self._lock.close()
