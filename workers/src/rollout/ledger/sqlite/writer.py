"""One thread that owns the connection and commits many operations with one fsync.

Operations queue up while a commit is on its way to the disk; the next transaction takes all of them
(group commit). Each runs inside a savepoint: one that raises leaves nothing behind and disturbs no
neighbour. A future is resolved only after the transaction that holds its operation is on disk.
"""

from __future__ import annotations

import errno
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from rollout.errors import LedgerBroken, LedgerError, LedgerFull
from rollout.ledger.sql.transaction import Operation
from rollout.ledger.sqlite.transaction import SqliteTransaction

OPERATIONS_MAX = 10_000
"""Most operations that may wait; more is refused, for the caller to try again."""

GROUP_MAX = 512
"""Most operations in one transaction."""

T = TypeVar("T")


class Writer:
    """Runs operations in order on a thread of its own."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._path = path
        self._queue: queue.Queue[tuple[Operation[Any], Future[Any]] | None] = queue.Queue(
            OPERATIONS_MAX
        )
        self.position: int = connection.execute("SELECT position FROM run").fetchone()[0]
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def write(self, operation: Operation[T], *, shares: bool = False) -> Future[T]:
        """Queue an operation. Raises LedgerError when too many wait already or the ledger is closed."""
        del shares  # Every operation here shares its transaction.
        return self.read(operation)

    def read(self, operation: Operation[T]) -> Future[T]:
        """Queue an operation: reads stand in line behind the writes, and see them."""
        if not self._thread.is_alive():
            raise LedgerError(f"the ledger {self._path} is closed")
        future: Future[T] = Future()
        try:
            self._queue.put_nowait((operation, future))
        except queue.Full:
            raise LedgerError(
                f"{OPERATIONS_MAX} writes already wait for the ledger {self._path}: its disk is too slow"
            ) from None
        return future

    def close(self) -> None:
        """Run what is queued, fold the log into the file, close. Idempotent."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            group, closing = self._next_group()
            if group:
                self._commit(group)
        self._connection.close()

    def _next_group(self) -> tuple[list[tuple[Operation[Any], Future[Any]]], bool]:
        group: list[tuple[Operation[Any], Future[Any]]] = []
        item = self._queue.get()
        while item is not None:
            if item[1].set_running_or_notify_cancel():
                group.append(item)
            if len(group) >= GROUP_MAX:
                return group, False
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _commit(self, group: list[tuple[Operation[Any], Future[Any]]]) -> None:
        results: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            changes = self._connection.total_changes
            for operation, future in group:
                results.append((future, *self._attempt(operation)))
            position = self.position
            if self._connection.total_changes > changes:
                position += 1
                self._connection.execute("UPDATE run SET position = ?", (position,))
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._abandon()
            wrapped = wrap(error, self._path)
            for _, future in group:
                future.set_exception(wrapped)
            return
        self.position = position
        for future, value, trouble in results:
            if trouble is None:
                future.set_result(value)
            else:
                future.set_exception(trouble)

    def _attempt(self, operation: Operation[Any]) -> tuple[Any, BaseException | None]:
        """Run one operation; an error of the disk or the file fails the whole transaction."""
        self._connection.execute("SAVEPOINT operation")
        try:
            value = operation(SqliteTransaction(self._connection, self._clock))
        except (sqlite3.IntegrityError, OverflowError) as error:  # no room for the number
            trouble: BaseException = LedgerError(f"the ledger refused a write: {error}")
        except sqlite3.Error:
            raise
        except UnicodeDecodeError as error:
            trouble = wrap(error, self._path)
        except Exception as error:  # noqa: BLE001 - handed to the caller through its future
            trouble = error
        else:
            self._connection.execute("RELEASE operation")
            return value, None
        self._connection.execute("ROLLBACK TO operation")
        self._connection.execute("RELEASE operation")
        return None, trouble

    def _abandon(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What the database raises; the second where its own words repeat bytes of a damaged file."""


def wrap(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> LedgerError:
    """The error of ours that says what happened to the file and what to do."""
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    if isinstance(error, UnicodeDecodeError):
        name = "SQLITE_CORRUPT"
    if name == "SQLITE_FULL":
        return no_space(path)
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return LedgerBroken(
            f"the ledger {path} is damaged ({error}): restore it from a copy, or start a new run;"
            " snapshots/ and objects/ of this run stay usable"
        )
    if name.startswith("SQLITE_IOERR"):
        return LedgerBroken(f"the disk under the ledger {path} failed ({name}: {error})")
    return LedgerError(f"the ledger {path} could not be used ({name}: {error})")


def wrap_system(error: OSError, path: Path) -> LedgerError:
    """The same for what the file system says of the ledger's folder."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return no_space(path)
    return LedgerError(f"the folder of the ledger {path} cannot be written into: {error}")


def no_space(path: Path) -> LedgerFull:
    """The error of a full disk."""
    return LedgerFull(
        f"no space left for the ledger {path}: nothing committed is lost; free space on that"
        " file system (old runs, objects/ of finished runs, caches), then resume the run"
    )
