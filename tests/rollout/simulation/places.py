"""The ledger of a simulated run: the real one, without threads."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rollout.errors import LedgerError
from rollout.ledger.records import Limits, RunIdentity
from rollout.ledger.sql.ledger import SqlLedger
from rollout.ledger.sqlite.opening import open_connection
from rollout.ledger.sqlite.writer import GROUP_MAX, Writer

IDENTITY = RunIdentity(uid="uid-1", name="simulated", spec_digest="blake3:" + "0" * 64)
EPOCH = 1.7e9
"""The ledger's clock at virtual time 0."""
SYNCHRONOUS_FULL = 2


class InlineWriter(Writer):
    """The real writer's transactions and group commit, on timers of the loop instead of a thread.

    ``committed`` is called between the commit and its answers: whoever kills the process there has lost
    an acknowledgement.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        clock: Callable[[], float],
        draw: random.Random,
        committed: Callable[[], None],
    ) -> None:
        self._connection, self._path, self._clock = connection, path, clock
        self._draw, self._committed = draw, committed
        self._waiting: list[tuple[Any, Future]] = []
        self._busy = self.closed = False
        self.position: int = connection.execute("SELECT position FROM run").fetchone()[0]

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._busy)

    def read(self, operation):
        if self.closed:
            raise LedgerError(f"the ledger {self._path} is closed")
        future: Future = Future()
        self._waiting.append((operation, future))
        self._schedule()
        return future

    def _schedule(self) -> None:
        if self._waiting and not self._busy:
            self._busy = True
            self._later(self._flush)

    def _later(self, work: Callable[..., None], *values: Any) -> None:
        asyncio.get_running_loop().call_later(self._draw.uniform(0.0005, 0.02), work, *values)

    def _flush(self) -> None:
        if self.closed:
            return
        group, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
        group = [item for item in group if item[1].set_running_or_notify_cancel()]
        inner: list[Future] = [Future() for _ in group]
        if group:
            self._commit([(item[0], made) for item, made in zip(group, inner, strict=True)])
            self._committed()
        if not self.closed:
            self._later(self._deliver, [item[1] for item in group], inner)

    def _deliver(self, outer: list[Future], inner: list[Future]) -> None:
        if self.closed:
            return
        for given, made in zip(outer, inner, strict=True):
            error = made.exception()
            if error is None:
                given.set_result(made.result())
            else:
                given.set_exception(error)
        self._busy = False
        self._schedule()

    def close(self) -> None:
        """What is queued is lost: that is what a kill does, and an orderly end has nothing queued."""
        if not self.closed:
            self.closed = True
            self._connection.close()


class SimulatedLedger(SqlLedger):
    """The real SQLite ledger over ``InlineWriter``, without the time that flushing takes.

    What the machine's death would have cost is known from what was asked of SQLite: with ``synchronous = FULL``
    a commit is flushed before it is answered; with less, all since the last checkpoint may be lost.
    """

    def __init__(
        self,
        path: Path,
        limits: Limits,
        clock: Callable[[], float],
        draw: random.Random,
        committed: Callable[[], None],
    ) -> None:
        connection, self._lock = open_connection(path, IDENTITY)
        self._path = path
        self._is_flushed = (
            connection.execute("PRAGMA synchronous").fetchone()[0] >= SYNCHRONOUS_FULL
        )
        if not self._is_flushed:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copy(path, self._checkpoint)
        connection.execute("PRAGMA synchronous = OFF")
        connection.row_factory = sqlite3.Row
        self.writer = InlineWriter(connection, path, clock, draw, committed)
        super().__init__(IDENTITY, limits, self.writer)

    @property
    def _checkpoint(self) -> Path:
        return self._path.with_name(f"{self._path.name}.checkpoint")

    def cut(self) -> None:
        """The machine died, after the process."""
        if not self._is_flushed:
            for end in ("-wal", "-shm"):
                self._path.with_name(self._path.name + end).unlink(missing_ok=True)
            shutil.copy(self._checkpoint, self._path)

    def drop(self) -> None:
        """The process died."""
        self.writer.close()
        self._lock.close()

    async def close(self) -> None:
        self.drop()
