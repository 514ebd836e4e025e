"""The places of a simulated run: a ledger without threads, a store in memory, a network that loses things."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from blake3 import blake3

from rollout.errors import LedgerError, StoreError
from rollout.ledger.records import Limits, RunIdentity
from rollout.ledger.sql.ledger import SqlLedger
from rollout.ledger.sqlite.opening import open_connection
from rollout.ledger.sqlite.writer import GROUP_MAX, Writer

IDENTITY = RunIdentity(uid="uid-1", name="simulated", spec_digest="blake3:" + "0" * 64)
EPOCH = 1.7e9
"""The ledger's clock at virtual time 0."""


class Store:
    """An object store in memory: content by digest, verified by construction."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.num_rebuilt = 0

    def put(self, data: bytes) -> str:
        digest = f"blake3:{blake3(data).hexdigest()}"
        self.objects[digest] = data
        return digest

    def read(self, digest: str) -> bytes:
        if digest not in self.objects:
            raise StoreError(f"{digest} is not in the store")
        return self.objects[digest]

    def path(self, digest: str) -> Path:
        self.read(digest)
        return Path(digest)

    def changes(self, since: str, name: str) -> None:
        """Nobody knows what differs."""

    def forget(self) -> None:
        """Nothing is kept of what was read."""

    def has(self, digest: str) -> bool:
        return digest in self.objects

    def delete(self, digest: str) -> None:
        self.objects.pop(digest, None)

    def names(self) -> list[str]:
        return list(self.objects)


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
    """The real SQLite ledger over ``InlineWriter``. Without fsync: only processes die here, not machines."""

    def __init__(
        self,
        path: Path,
        limits: Limits,
        clock: Callable[[], float],
        draw: random.Random,
        committed: Callable[[], None],
    ) -> None:
        connection, self._lock = open_connection(path, IDENTITY)
        connection.execute("PRAGMA synchronous = OFF")
        connection.row_factory = sqlite3.Row
        self.writer = InlineWriter(connection, path, clock, draw, committed)
        super().__init__(IDENTITY, limits, self.writer)

    def drop(self) -> None:
        """The process died."""
        self.writer.close()
        self._lock.close()

    async def close(self) -> None:
        self.drop()
