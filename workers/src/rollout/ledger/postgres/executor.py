"""Connections that run operations side by side, each operation a short transaction of its own.

Every connection holds a shared lock of the ledger. A coordinator that takes over ends all of them and
holds the lock alone while it opens a new term; a new connection looks at the term first, so none of an
older one can write. A transaction's last statement leaves a receipt: a commit whose answer was
lost is looked up by it, behind its own row lock, before anything is repeated; and a server that knows
fewer receipts than it gave has lost writes.
Submissions that pile up while every connection is busy share a transaction (group commit).
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakSet

import psycopg
from psycopg_pool import ConnectionPool

from rollout.errors import LedgerError, LedgerRewound, LedgerSuperseded, LedgerUnreachable
from rollout.ledger.postgres.address import CONNECT_SECONDS, Address
from rollout.ledger.postgres.failures import is_transient, wrap
from rollout.ledger.postgres.opening import prepare
from rollout.ledger.postgres.transaction import (
    SERVER_CLOCK,
    Connected,
    PostgresTransaction,
    Types,
    ask,
    named_rows,
)
from rollout.ledger.postgres.watch import ConnectionWatch
from rollout.ledger.sql.transaction import Operation, Transaction

log = logging.getLogger(__name__)

T = TypeVar("T")

OPERATIONS_MAX = 10_000
"""Most operations that may wait; more is refused, for the caller to try again."""

GROUP_MAX = 64
"""Most submissions in one transaction."""

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.02, 1.0
"""First and longest pause before another try."""

IDLE, UNKNOWN = psycopg.pq.TransactionStatus.IDLE, psycopg.pq.TransactionStatus.UNKNOWN
"""Nothing is under way; the connection is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """How a ledger uses its server.

    ``patience_seconds`` bounds how long one operation is tried again while the server is away,
    ``silence_seconds`` how long a connection may say nothing before it is cut. ``clock`` is SQL.
    """

    lanes: int = 4
    patience_seconds: float = 60.0
    silence_seconds: float = 40.0
    clock: str = SERVER_CLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """What opening found out: the term of this coordinator, the position it starts from, its lanes."""

    term: int
    position: int
    lanes: tuple[str, ...]
    types: Types


@dataclass(slots=True, kw_only=True)
class _Waiting:
    operation: Operation[Any]
    reads: bool
    shares: bool
    future: Future[Any] = field(default_factory=Future)


@dataclass(slots=True)
class _Try:
    """One transaction over all its tries; ``values`` are known once its commit was sent."""

    token: str = field(default_factory=lambda: secrets.token_hex(8))
    sent: bool = False
    values: Any = None


class Executor:
    """Runs operations on a pool of connections, ``settings.lanes`` at a time."""

    def __init__(self, address: Address, hold: Term, settings: ExecutorSettings) -> None:
        self._address, self._hold, self._settings = address, hold, settings
        self._position = hold.position
        self._writes = dict.fromkeys(hold.lanes, 0)
        self._waiting: deque[_Waiting] = deque()
        self._ready = threading.Condition()
        self._closing = False
        self._greeted: WeakSet[Connected] = WeakSet()
        self._watch = ConnectionWatch(settings.silence_seconds)
        self._pool = ConnectionPool(
            address.dsn,
            kwargs={"autocommit": True, "row_factory": named_rows},
            configure=prepare,
            min_size=1,
            max_size=settings.lanes,
            name=address.schema,
            open=True,
        )
        self._threads = [
            threading.Thread(target=self._run, args=(name,), name=f"ledger-{name}", daemon=True)
            for name in hold.lanes
        ]
        for thread in self._threads:
            thread.start()

    @property
    def position(self) -> int:
        """How many writes were acknowledged."""
        return self._position

    def write(self, operation: Operation[T], *, shares: bool = False) -> Future[T]:
        """Queue one that writes. Raises LedgerError when too many wait or the ledger is closed."""
        return self._enqueue(_Waiting(operation=operation, reads=False, shares=shares))

    def read(self, operation: Operation[T]) -> Future[T]:
        """Queue one that reads, all as of one moment."""
        return self._enqueue(_Waiting(operation=operation, reads=True, shares=False))

    def close(self) -> None:
        """Run what is queued, close the connections. Idempotent."""
        with self._ready:
            self._closing = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()
        self._watch.close()
        self._pool.close(timeout=CONNECT_SECONDS)

    def _enqueue(self, one: _Waiting) -> Future[Any]:
        with self._ready:
            if self._closing:
                raise LedgerError(f"the ledger at {self._address.where} is closed")
            if len(self._waiting) >= OPERATIONS_MAX:
                raise LedgerError(
                    f"{OPERATIONS_MAX} operations already wait for the ledger at"
                    f" {self._address.where}: its server is too slow"
                )
            self._waiting.append(one)
            self._ready.notify()
        return one.future

    def _run(self, lane: str) -> None:
        while group := self._take():
            running = [one for one in group if one.future.set_running_or_notify_cancel()]
            if running:
                self._serve(lane, running)

    def _take(self) -> list[_Waiting]:
        """The next operation, and its share of the submissions behind it; empty at the end."""
        with self._ready:
            while not self._waiting and not self._closing:
                self._ready.wait()
            group: list[_Waiting] = []
            share = min(GROUP_MAX, max(1, len(self._waiting) // self._settings.lanes))
            while self._waiting and len(group) < share:
                if group and not (group[0].shares and self._waiting[0].shares):
                    break
                group.append(self._waiting.popleft())
            return group

    def _serve(self, lane: str, group: Sequence[_Waiting]) -> None:
        def everything(tx: Transaction) -> list[Any]:
            return [one.operation(tx) for one in group]

        try:
            values = self._persist(_Try(), everything, lane=lane, reads=group[0].reads)
        except Exception as error:  # noqa: BLE001 - handed to the callers through their futures
            if len(group) == 1:
                group[0].future.set_exception(error)
                return
            # One of them was refused, and the transaction with it: each on its own.
            for one in group:
                self._serve(lane, [one])
            return
        for one, value in zip(group, values, strict=True):
            one.future.set_result(value)

    def _persist(self, what: _Try, operation: Operation[T], *, lane: str, reads: bool) -> T:
        """Run one transaction, again and again while the trouble may pass.

        Raises LedgerUnreachable when it does not within the bound, and what the operation raises.
        """
        began, pause = time.monotonic(), PAUSE_SECONDS
        while True:
            try:
                return self._attempt(what, operation, lane=lane, reads=reads)
            except psycopg.Error as error:
                if not is_transient(error):
                    raise wrap(error, self._address) from error
                waited = time.monotonic() - began
                if waited > self._settings.patience_seconds:
                    raise LedgerUnreachable(
                        f"the ledger at {self._address.where} has not done a transaction for"
                        f" {waited:.0f} s ({' '.join(str(error).split())}): nothing acknowledged is"
                        " lost; bring the server back"
                    ) from error
                log.warning(
                    "ledger transaction tried again after %s: %s", type(error).__name__, error
                )
            time.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def _attempt(self, what: _Try, operation: Operation[T], *, lane: str, reads: bool) -> T:
        connection = self._pool.getconn(timeout=CONNECT_SECONDS)
        try:
            with self._watch.over(connection):
                try:
                    if connection not in self._greeted:
                        self._greet(connection)
                    return self._transact(connection, what, operation, lane=lane, reads=reads)
                finally:
                    if connection.info.transaction_status not in (IDLE, UNKNOWN):
                        connection.rollback()
        finally:
            self._pool.putconn(connection)

    def _transact(
        self, connection: Connected, what: _Try, operation: Operation[T], *, lane: str, reads: bool
    ) -> T:
        with connection.pipeline():
            tx = self._begin(connection, reads=reads)
            if what.sent:
                token, writes = _read_receipt(connection, lane)
                if token == what.token:
                    self._advance(lane, writes)
                    return what.values
            values = operation(tx)
            writes = tx.changed and not reads
            if writes:
                what.sent, what.values = True, values
                tx.write(
                    "UPDATE receipts SET token = ?, writes = writes + 1 WHERE lane = ?",
                    (what.token, lane),
                )
                tx.flush()
            connection.execute("COMMIT")
        if writes:
            self._advance(lane, self._writes[lane] + 1)
        return values

    def _begin(self, connection: Connected, *, reads: bool) -> PostgresTransaction:
        if reads:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        else:
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        return PostgresTransaction(connection, self._settings.clock, self._hold.types)

    def _greet(self, connection: Connected) -> None:
        """Make sure, before a connection's first transaction, that this coordinator may use it.

        A takeover ends every connection, and so does a server that forgets: later there is no need.
        """
        known = dict(self._writes)
        connection.execute("SELECT pg_advisory_lock_shared(%s)", (self._address.key,))
        row = ask(
            connection,
            "SELECT term, ARRAY(SELECT lane FROM receipts ORDER BY lane) AS lanes,"
            " ARRAY(SELECT writes FROM receipts ORDER BY lane) AS writes FROM ledger",
        )
        writes = dict(zip(row["lanes"], row["writes"], strict=True))
        if row["term"] > self._hold.term:
            raise LedgerSuperseded(
                f"another coordinator has taken over the ledger at {self._address.where} (term"
                f" {row['term']}, this one has {self._hold.term}): this process must end"
            )
        if row["term"] < self._hold.term or any(
            writes.get(lane, -1) < count for lane, count in known.items()
        ):
            raise LedgerRewound(
                f"the ledger at {self._address.where} has lost writes that it had acknowledged, as"
                " after the failover of an asynchronous replica: restore the server that has them,"
                " or start a new run"
            )
        self._greeted.add(connection)

    def _advance(self, lane: str, writes: int) -> None:
        with self._ready:
            self._writes[lane] = max(self._writes[lane], writes)
            self._position = self._hold.position + sum(self._writes.values())


def _read_receipt(connection: Connected, lane: str) -> tuple[str, int]:
    """The lane's last commit. Waits for one that is still on its way: it keeps the row."""
    row = ask(connection, "SELECT token, writes FROM receipts WHERE lane = %s FOR UPDATE", (lane,))
    return row["token"], row["writes"]
