"""The ledger in Postgres beside raw psycopg that writes the same rows, under the same fences, in the same round trips.

``ledger`` compares with one table, as anybody would write it. Here the other side is a ledger by hand: our tables,
and for a claim and a submission what the contract's promises need: the fence of the worker's row, leases and rows
locked against others, one statement that writes all, a receipt, and two round trips. What is left between the two is
what our own code costs. Each side has a schema of its own in one server; they take turns, and end with equal tables.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from data_plane_ledger import (
    BATCH,
    BATCHES,
    GROUP_BODIES,
    WORKERS,
    Load,
    Times,
    interleave,
    name_of,
)
from figures import Figure, ratio

from rollout.ledger.records import RunIdentity

LEASE_SECONDS = 600.0
NOW = "extract(epoch FROM clock_timestamp())::float8"
LEASE = (
    "task_id, kind, ordinal, num_samples, evaluation, split, lineage, step, epoch, worker, incarnation,"
    " version_lineage, version_step, leased_at, expires_at, failures, losses, data_failures, prefixed"
)
LOOK_FOR_TASKS = f"""
WITH fence AS (SELECT incarnation FROM workers WHERE worker = %(worker)s FOR SHARE),
leased AS (SELECT {LEASE} FROM tasks WHERE state = 'leased' AND (worker = %(worker)s OR expires_at <= {NOW})
  AND (SELECT incarnation FROM fence) = %(incarnation)s FOR UPDATE SKIP LOCKED),
fresh AS (SELECT {LEASE} FROM tasks WHERE state = 'open' AND kind IN ('train', 'eval')
  AND (SELECT incarnation FROM fence) = %(incarnation)s ORDER BY kind, step, ordinal LIMIT %(count)s
  FOR UPDATE SKIP LOCKED)
SELECT {NOW}, 0, leased.* FROM leased UNION ALL SELECT {NOW}, 1, fresh.* FROM fresh"""
TAKE = """
WITH taken AS (UPDATE tasks SET state = 'leased', epoch = epoch + 1, worker = %(worker)s,
  incarnation = %(incarnation)s, version_lineage = 0, version_step = 0, leased_at = %(now)s, expires_at = %(until)s
  WHERE task_id = ANY(%(ids)s)),
begun AS (INSERT INTO attempts (task_id, epoch, worker, incarnation, version_lineage, version_step, started_at)
  SELECT id, epoch, %(worker)s, %(incarnation)s, 0, 0, %(now)s
  FROM unnest(%(ids)s::text[], %(epochs)s::int8[]) AS one (id, epoch))
UPDATE receipts SET token = %(token)s, writes = writes + 1 WHERE lane = %(worker)s"""
LOOK_AT_LEASES = """
WITH fence AS (SELECT incarnation FROM workers WHERE worker = %s FOR SHARE)
SELECT task_id, state, epoch, num_samples, data_failures, prefixed FROM tasks
WHERE (SELECT incarnation FROM fence) = %s AND task_id = ANY(%s) ORDER BY task_id FOR UPDATE"""
KEEP = f"""
WITH samples AS (INSERT INTO trajectories (task_id, sample, trajectory_id, epoch, reward, num_tokens, ending)
  SELECT * FROM unnest(%(tasks)s::text[], %(samples)s::int4[], %(names)s::text[], %(epochs)s::int8[],
  %(rewards)s::float8[], %(tokens)s::int4[], %(endings)s::text[])),
bodies AS (INSERT INTO bodies (task_id, body) VALUES {{bodies}}),
done AS (UPDATE tasks SET state = 'done' WHERE task_id = ANY(%(ids)s)),
ended AS (UPDATE attempts SET ended_at = {NOW}, ending = 'accepted', message = ''
  WHERE task_id = ANY(%(ids)s) AND ending IS NULL)
UPDATE receipts SET token = %(token)s, writes = writes + 1 WHERE lane = %(worker)s"""
EQUAL = (
    "SELECT state, count(*), sum(epoch), count(expires_at) FROM tasks GROUP BY state ORDER BY state",
    "SELECT ending, count(*), count(ended_at) FROM attempts GROUP BY ending ORDER BY ending",
    "SELECT count(*), sum(reward), sum(num_tokens) FROM trajectories",
    "SELECT md5(string_agg(trajectory_id, '' ORDER BY task_id, sample)) FROM trajectories",
    "SELECT count(*), sum(length(body)) FROM bodies",
)

Taken = tuple[str, int, int]
"""A leased task: its id, its ordinal, the epoch of its lease."""


class ByHand:
    """``Load``'s rounds by hand, a connection a worker; tasks are let in by the ledger, outside the clock."""

    def __init__(self, dsn: str, identity: RunIdentity, size: int) -> None:
        import psycopg

        from rollout.ledger.postgres.address import find_address
        from rollout.ledger.postgres.ledger import PostgresLedger

        self.load = Load(PostgresLedger(dsn, identity), size, workers=WORKERS)
        self._size = size
        address = find_address(dsn, identity.uid)
        self._connections = [psycopg.connect(address.dsn, autocommit=True) for _ in range(WORKERS)]
        self._incarnations: tuple[int, ...] = ()
        self._pool = ThreadPoolExecutor(WORKERS)
        bodies = ", ".join(f"(%(id{n})s, %(body{n})s)" for n in range(BATCH // size))
        self._keep = KEEP.format(bodies=bodies)
        for worker, connection in enumerate(self._connections):
            connection.execute("INSERT INTO receipts VALUES (%s, '', 0)", (f"actor-{worker}",))

    def round(self, loop: asyncio.AbstractEventLoop) -> Times:
        """One round of both kinds of work."""
        loop.run_until_complete(self.load.register())
        loop.run_until_complete(self.load.admit())
        count = BATCHES * BATCH // self._size
        leases = [self._claim(worker, count) for worker in range(WORKERS)]
        inserted = self._all(lambda worker: self._insert(worker, leases[worker]))
        loop.run_until_complete(self.load.admit())
        acknowledged = self._all(self._claim_and_ack)
        return inserted, acknowledged, acknowledged

    def close(self) -> None:
        """End the connections."""
        for connection in self._connections:
            connection.close()
        self._pool.shutdown()

    def _all(self, work: Callable[[int], None]) -> float:
        began = time.perf_counter()
        list(self._pool.map(work, range(WORKERS)))
        return time.perf_counter() - began

    def _insert(self, worker: int, leases: Sequence[Taken]) -> None:
        count = BATCH // self._size
        for start in range(0, len(leases), count):
            self._submit(worker, leases[start : start + count], GROUP_BODIES[self._size])

    def _claim_and_ack(self, worker: int) -> None:
        for _ in range(BATCHES):
            self._submit(worker, self._claim(worker, BATCH // self._size), b"")

    def _claim(self, worker: int, count: int) -> list[Taken]:
        name, incarnation = f"actor-{worker}", self.load.incarnations[worker]
        connection = self._connections[worker]
        with connection.pipeline():
            connection.execute("BEGIN")
            ask = {"worker": name, "incarnation": incarnation, "count": count}
            rows = connection.execute(LOOK_FOR_TASKS, ask).fetchall()
            now, fresh = rows[0][0], [row for row in rows if row[1] == 1]
            taken = [(row[2], row[4], row[10] + 1) for row in fresh]
            values = {
                "worker": name,
                "incarnation": incarnation,
                "now": now,
                "until": now + LEASE_SECONDS,
                "ids": [one[0] for one in taken],
                "epochs": [one[2] for one in taken],
                "token": f"{now:.6f}",
            }
            connection.execute(TAKE, values)
            connection.execute("COMMIT")
        assert len(taken) == count
        return taken

    def _submit(self, worker: int, leases: Sequence[Taken], body: bytes) -> None:
        name, connection = f"actor-{worker}", self._connections[worker]
        ids = [task_id for task_id, _, _ in leases]
        values = {**self._samples(leases), "ids": ids, "worker": name, "token": ids[0]}
        values |= {f"id{place}": task_id for place, task_id in enumerate(ids)}
        values |= {f"body{place}": body for place in range(len(ids))}
        with connection.pipeline():
            connection.execute("BEGIN")
            ask = (name, self.load.incarnations[worker], ids)
            rows = connection.execute(LOOK_AT_LEASES, ask).fetchall()
            held = {row[0]: (row[1], row[2]) for row in rows}
            assert all(held.get(one[0]) == ("leased", one[2]) for one in leases)
            connection.execute(self._keep, values)
            connection.execute("COMMIT")

    def _samples(self, leases: Sequence[Taken]) -> dict[str, list[Any]]:
        every = [(*one, sample) for one in leases for sample in range(self._size)]
        return {
            "tasks": [task_id for task_id, _, _, _ in every],
            "samples": [sample for _, _, _, sample in every],
            "names": [name_of(ordinal, sample) for _, ordinal, _, sample in every],
            "epochs": [epoch for _, _, epoch, _ in every],
            "rewards": [0.5] * len(every),
            "tokens": [512] * len(every),
            "endings": ["stop"] * len(every),
        }


def measure() -> Iterator[Figure]:
    """Groups of 8 trajectories, and of one; nothing where there is no server."""
    from postgres_server import make_server, why_not

    if why_not():
        sys.stderr.write(f"data-plane: Postgres was not measured: {why_not()}\n")
        return
    server = make_server(fsync="on", full_page_writes="on")
    try:
        for size in (8, 1):
            yield from _compare(server.dsn, size)
    finally:
        server.close()


def _compare(dsn: str, size: int) -> Iterator[Figure]:
    from rollout.ledger.postgres.ledger import PostgresLedger

    loop = asyncio.new_event_loop()
    identities = [
        RunIdentity(uid=f"{side}-{size}", name="bench", spec_digest="blake3:0")
        for side in ("ours", "hand")
    ]
    ours = Load(PostgresLedger(dsn, identities[0]), size, workers=WORKERS)
    hand = ByHand(dsn, identities[1], size)
    theirs, found = interleave(
        lambda: hand.round(loop), {size: lambda: loop.run_until_complete(ours.round())}
    )
    _check_equal(dsn, identities)
    for ledger in (ours.ledger, hand.load.ledger):
        loop.run_until_complete(ledger.close())
    hand.close()
    bar = ">= 0.8" if size > 1 else "info"
    for place, what in enumerate(("insert", "claim + ack")):
        yield ratio(
            f"ledger Postgres x {WORKERS}: {what} by hand, groups of {size}",
            [one[place] for one in found[size]],
            [one[place] for one in theirs],
            bar,
        )


def _check_equal(dsn: str, identities: Sequence[RunIdentity]) -> None:
    """Raise RuntimeError where the two sides did not write the same rows."""
    import psycopg

    from rollout.ledger.postgres.address import find_address

    facts = []
    for identity in identities:
        with psycopg.connect(find_address(dsn, identity.uid).dsn) as connection:
            facts.append([connection.execute(one).fetchall() for one in EQUAL])
    if facts[0] != facts[1]:
        raise RuntimeError(f"the two sides differ: {facts}")
