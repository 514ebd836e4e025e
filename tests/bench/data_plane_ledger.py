"""Durable trajectories a second at the ledger contract, beside the same rows written with the bare client.

Rows of 16 KiB in batches of 32, every batch on disk before the next: SQLite with WAL and
``synchronous = FULL``, Postgres with ``fsync`` on, on four connections. *Insert* is ``submit``: leases and
fences are checked, trajectories, body and the attempt's end are written. *Claim and ack* is ``claim`` and a
``submit`` whose body lies elsewhere, against rows locked and marked as taken, then marked as done with a row of
result each, as a rollout has one; *bare* leaves that row out. A group has 8 trajectories in one body (figures
with a bar), or one (told only).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Figure, ratio

from rollout.ledger.contract import Ledger
from rollout.ledger.records import (
    Admission,
    AttemptEnd,
    ClaimRequest,
    Lease,
    NewTask,
    RunIdentity,
    SampleRow,
)
from rollout.ledger.sqlite.ledger import SqliteLedger

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests" / "rollout" / "ledger"), str(ROOT / "e2e")]

ROW_BYTES = 16 << 10
BATCH = 32
BATCHES = 8
"""Batches of one worker in one round."""
ROUNDS = 25
WORKERS = 4
BODIES = [os.urandom(ROW_BYTES) for _ in range(BATCH)]
GROUP_BODIES = {size: b"".join(BODIES[:size]) for size in (8, 1)}

Times = tuple[float, float, float]
"""Seconds of the insert, of claim and ack, and of claim and ack without a result."""


def measure() -> Iterator[Figure]:
    """SQLite, then Postgres where there is a server."""
    with tempfile.TemporaryDirectory() as name:
        yield from _sqlite(Path(name))
    from postgres_server import make_server, why_not

    if why_not():
        sys.stderr.write(f"data-plane: Postgres was not measured: {why_not()}\n")
        return
    server = make_server(fsync="on", full_page_writes="on")
    try:
        yield from _postgres(server.dsn)
    finally:
        server.close()


def _figures(
    store: str, bars: tuple[str, str, str], raw: list[Times], ours: dict[int, list[Times]]
) -> Iterator[Figure]:
    for place, what in enumerate(("insert", "claim + ack", "claim + bare ack")):
        for size, times in ours.items():
            bar = bars[place] if size > 1 else "info"
            yield ratio(
                f"ledger {store}: {what}, groups of {size}",
                [one[place] for one in times],
                [one[place] for one in raw],
                bar,
            )


@dataclass(slots=True)
class Load:
    """A run that is given tasks of ``size`` samples and answers all of them, ``workers`` at a time."""

    ledger: Ledger
    size: int
    workers: int
    next_ordinal: int = 0
    incarnations: tuple[int, ...] = ()

    async def round(self) -> Times:
        """One round of both kinds of work."""
        await self.register()
        await self.admit()
        leases = [await self._claim(n, BATCHES * BATCH // self.size) for n in range(self.workers)]
        began = time.perf_counter()
        await asyncio.gather(*(self._insert(n, leases[n]) for n in range(self.workers)))
        inserted = time.perf_counter() - began
        await self.admit()
        began = time.perf_counter()
        await asyncio.gather(*(self._claim_and_ack(n) for n in range(self.workers)))
        acknowledged = time.perf_counter() - began
        return inserted, acknowledged, acknowledged

    async def register(self) -> None:
        """The workers; once."""
        if not self.incarnations:
            names = [f"actor-{n}" for n in range(self.workers)]
            made = [await self.ledger.register(name, "actor") for name in names]
            self.incarnations = tuple(one.incarnation for one in made)

    async def admit(self) -> None:
        """Tasks for one kind of work."""
        start = self.next_ordinal
        self.next_ordinal += self.workers * BATCHES * BATCH // self.size
        tasks = tuple(
            NewTask(task_id=f"t/{n}", kind="train", ordinal=n, num_samples=self.size)
            for n in range(start, self.next_ordinal)
        )
        await self.ledger.admit(Admission(tasks=tasks, next_admitted=self.next_ordinal))

    async def _claim(self, worker: int, count: int, held: Sequence[Lease] = ()) -> list[Lease]:
        ask = ClaimRequest(
            worker=f"actor-{worker}",
            incarnation=self.incarnations[worker],
            tasks_max=count,
            held=tuple(lease.task.task_id for lease in held),
            lease_seconds=600.0,
            lineage=0,
            step=0,
        )
        return list((await self.ledger.claim(ask)).leases)

    async def _insert(self, worker: int, leases: Sequence[Lease]) -> None:
        count = BATCH // self.size
        for start in range(0, len(leases), count):
            await self._submit(worker, leases[start : start + count], GROUP_BODIES[self.size])

    async def _claim_and_ack(self, worker: int) -> None:
        for _ in range(BATCHES):
            leases = await self._claim(worker, BATCH // self.size)
            await self._submit(worker, leases, b"")

    async def _submit(self, worker: int, leases: Sequence[Lease], body: bytes) -> None:
        ends = [_end(lease, body) for lease in leases]
        name, incarnation = f"actor-{worker}", self.incarnations[worker]
        verdicts = await self.ledger.submit(name, incarnation, ends)
        assert len(verdicts) * self.size == BATCH
        assert all(verdict.accepted for verdict in verdicts)


def _end(lease: Lease, body: bytes) -> AttemptEnd:
    rows = tuple(
        SampleRow(
            sample=sample,
            trajectory_id=name_of(lease.task.ordinal, sample),
            reward=0.5,
            num_tokens=512,
            ending="stop",
        )
        for sample in range(lease.task.num_samples)
    )
    return AttemptEnd(task_id=lease.task.task_id, epoch=lease.epoch, samples=rows, body=body)


def name_of(ordinal: int, sample: int) -> str:
    """A trajectory's name, made of its place."""
    return f"blake3:{ordinal * 1_000_003 + sample:064x}"


def _rows(start: int) -> list[tuple[int, str, bytes]]:
    return [(start + n, name_of(start, n), body) for n, body in enumerate(BODIES)]


def interleave(
    raw: Callable[[], Times], ours: dict[int, Callable[[], Times]]
) -> tuple[list[Times], dict[int, list[Times]]]:
    """Rounds of everything, each time in another order; the first round warms up."""
    everything = {0: raw, **ours}
    found: dict[int, list[Times]] = {key: [] for key in everything}
    for number in range(ROUNDS + 1):
        order = list(everything) if number % 2 else list(reversed(everything))
        for key in order:
            times = everything[key]()
            if number:
                found[key].append(times)
    return found.pop(0), found


def _sqlite(folder: Path) -> Iterator[Figure]:
    loop = asyncio.new_event_loop()
    identity = RunIdentity(uid="bench", name="bench", spec_digest="blake3:0")
    loads = {
        size: Load(SqliteLedger(folder / f"{size}.db", identity), size, workers=1)
        for size in (8, 1)
    }
    raw = RawSqlite(folder / "raw.db")
    ours = {
        size: lambda load=load: loop.run_until_complete(load.round())
        for size, load in loads.items()
    }
    found = interleave(raw.round, ours)
    for load in loads.values():
        loop.run_until_complete(load.ledger.close())
    yield from _figures("SQLite", (">= 0.8", ">= 0.7", "info"), *found)


class RawSqlite:
    """What anybody would write: one table, one connection, one transaction a batch."""

    def __init__(self, path: Path) -> None:
        self._tx = sqlite3.connect(path, isolation_level=None)
        self._tx.execute("PRAGMA journal_mode = WAL")
        self._tx.execute("PRAGMA synchronous = FULL")
        self._tx.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, state INTEGER NOT NULL DEFAULT 0, owner TEXT,"
            " expires REAL, name TEXT NOT NULL, body BLOB NOT NULL)"
        )
        self._tx.execute(
            "CREATE TABLE results (id INTEGER PRIMARY KEY, name TEXT NOT NULL, reward REAL, length INTEGER,"
            " ending TEXT)"
        )
        self._tx.execute("CREATE INDEX t_open ON t (id) WHERE state = 0")
        self._next = 0

    def round(self) -> Times:
        """One round of both kinds of work."""
        began = time.perf_counter()
        for _ in range(BATCHES):
            self._tx.execute("BEGIN IMMEDIATE")
            rows = _rows(self._next)
            self._tx.executemany("INSERT INTO t (id, name, body) VALUES (?, ?, ?)", rows)
            self._tx.execute("COMMIT")
            self._next += BATCH
        inserted = time.perf_counter() - began
        return inserted, self._claims(results=True), self._claims(results=False)

    def _claims(self, *, results: bool) -> float:
        self._tx.execute("UPDATE t SET state = 0 WHERE id >= ?", (self._next - BATCHES * BATCH,))
        began = time.perf_counter()
        for _ in range(BATCHES):
            self._claim_and_ack(results=results)
        spent = time.perf_counter() - began
        self._tx.execute("DELETE FROM results")
        return spent

    def _claim_and_ack(self, *, results: bool) -> None:
        self._tx.execute("BEGIN IMMEDIATE")
        taken = self._tx.execute(
            "UPDATE t SET state = 1, owner = 'a', expires = ? WHERE id IN"
            " (SELECT id FROM t WHERE state = 0 ORDER BY id LIMIT ?) RETURNING id",
            (time.time() + 30, BATCH),
        ).fetchall()
        self._tx.execute("COMMIT")
        assert len(taken) == BATCH
        self._tx.execute("BEGIN IMMEDIATE")
        if results:
            rows = [(number, name_of(number, 0), 0.5, 512, "stop") for (number,) in taken]
            self._tx.executemany("INSERT INTO results VALUES (?, ?, ?, ?, ?)", rows)
        self._tx.executemany("UPDATE t SET state = 2 WHERE id = ?", taken)
        self._tx.execute("COMMIT")


def _postgres(dsn: str) -> Iterator[Figure]:
    from rollout.ledger.postgres.ledger import PostgresLedger

    loop = asyncio.new_event_loop()
    loads = {}
    for size in (8, 1):
        identity = RunIdentity(uid=f"bench-{size}", name="bench", spec_digest="blake3:0")
        loads[size] = Load(PostgresLedger(dsn, identity), size, workers=WORKERS)
    raw = RawPostgres(dsn)
    ours = {
        size: lambda load=load: loop.run_until_complete(load.round())
        for size, load in loads.items()
    }
    found = interleave(raw.round, ours)
    for load in loads.values():
        loop.run_until_complete(load.ledger.close())
    yield from _figures(f"Postgres x {WORKERS}", (">= 0.8", ">= 0.8", "info"), *found)


class RawPostgres:
    """What anybody would write: one table, a connection a worker, one transaction a batch."""

    def __init__(self, dsn: str) -> None:
        import psycopg

        self._connections = [psycopg.connect(dsn) for _ in range(WORKERS)]
        with self._connections[0] as connection:
            connection.execute(
                "CREATE TABLE t (id BIGINT PRIMARY KEY, state INTEGER NOT NULL DEFAULT 0, owner TEXT,"
                " expires DOUBLE PRECISION, name TEXT NOT NULL, body BYTEA NOT NULL)"
            )
            connection.execute("ALTER TABLE t ALTER COLUMN body SET STORAGE EXTERNAL")
            connection.execute(
                "CREATE TABLE results (id BIGINT PRIMARY KEY, name TEXT NOT NULL, reward DOUBLE PRECISION,"
                " length INTEGER, ending TEXT)"
            )
            connection.execute("CREATE INDEX t_open ON t (id) WHERE state = 0")
        self._connections[0] = psycopg.connect(dsn)
        self._pool = ThreadPoolExecutor(WORKERS)
        self._next, self._lock = 0, threading.Lock()

    def round(self) -> Times:
        """One round of both kinds of work."""
        inserted = self._all(self._insert)
        return inserted, self._claims(results=True), self._claims(results=False)

    def _claims(self, *, results: bool) -> float:
        connection, first = self._connections[0], self._next - WORKERS * BATCHES * BATCH
        connection.execute("UPDATE t SET state = 0 WHERE id >= %s", (first,))
        connection.commit()
        spent = self._all(lambda worker: self._claim_and_ack(worker, results=results))
        connection.execute("TRUNCATE results")
        connection.commit()
        return spent

    def _all(self, work: Callable[[Any], None]) -> float:
        began = time.perf_counter()
        list(self._pool.map(work, self._connections))
        return time.perf_counter() - began

    def _insert(self, connection: Any) -> None:
        for _ in range(BATCHES):
            with self._lock:
                start, self._next = self._next, self._next + BATCH
            with connection.cursor() as cursor:
                cursor.executemany(
                    "INSERT INTO t (id, name, body) VALUES (%s, %s, %s)", _rows(start)
                )
            connection.commit()

    def _claim_and_ack(self, connection: Any, *, results: bool) -> None:
        for _ in range(BATCHES):
            taken = connection.execute(
                "UPDATE t SET state = 1, owner = 'a', expires = extract(epoch FROM now()) + 30"
                " WHERE id IN (SELECT id FROM t WHERE state = 0 ORDER BY id FOR UPDATE SKIP LOCKED"
                " LIMIT %s) RETURNING id",
                (BATCH,),
            ).fetchall()
            connection.commit()
            assert len(taken) == BATCH
            ids = [row[0] for row in taken]
            if results:
                rows = [(number, name_of(number, 0), 0.5, 512, "stop") for number in ids]
                with connection.cursor() as cursor:
                    cursor.executemany("INSERT INTO results VALUES (%s, %s, %s, %s, %s)", rows)
            connection.execute("UPDATE t SET state = 2 WHERE id = ANY(%s)", (ids,))
            connection.commit()
