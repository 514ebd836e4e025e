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
from contextlib import suppress
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
        self._gate = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def write(self, operation: Operation[T], *, shares: bool = False) -> Future[T]:
        """Queue an operation. Raises LedgerError when too many wait already or the ledger is closed."""
        del shares  # Every operation here shares its transaction.
        return self.read(operation)

    def read(self, operation: Operation[T]) -> Future[T]:
        """Queue an operation: reads stand in line behind the writes, and see them."""
        future: Future[T] = Future()
        with self._gate:
            if self._ended:
                raise self._closed()
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
        try:
            while not closing:
                group, closing = self._next_group()
                if group:
                    self._commit(group)
        finally:
            self._end()

    def _end(self) -> None:
        """Nobody waits for what is not written any more."""
        with self._gate:
            self._ended = True
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if item is not None and item[1].set_running_or_notify_cancel():
                item[1].set_exception(self._closed())
        self._connection.close()

    def _closed(self) -> LedgerError:
        return LedgerError(f"the ledger {self._path} is closed")

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
        try:
            results = self._transact([operation for operation, _ in group])
        except Exception as error:  # noqa: BLE001 - handed to the callers through their futures
            wrapped = _wrap_any(error, self._path)
            for _, future in group:
                future.set_exception(wrapped)
            self._abandon()
            return
        for (_, future), (value, trouble) in zip(group, results, strict=True):
            if trouble is None:
                future.set_result(value)
            else:
                future.set_exception(trouble)

    def _transact(self, operations: list[Operation[Any]]) -> list[tuple[Any, BaseException | None]]:
        """What each of them came to, once all of it is on the disk."""
        self._connection.execute("BEGIN IMMEDIATE")
        changes = self._connection.total_changes
        results = [self._attempt(operation) for operation in operations]
        position = self.position
        if self._connection.total_changes > changes:
            position += 1
            self._connection.execute("UPDATE run SET position = ?", (position,))
        self._connection.execute("COMMIT")
        self.position = position
        return results

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
        """Roll back. Where even that fails, so does every later BEGIN, which says so to its callers."""
        with suppress(sqlite3.Error):
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


def _wrap_any(error: Exception, path: Path) -> LedgerError:
    if isinstance(error, DATABASE_ERRORS):
        return wrap(error, path)
    return LedgerError(f"the ledger {path} could not be used ({type(error).__name__}: {error})")


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
