"""What the ledger's SQL asks of a database, and how it runs.

SQL here is what SQLite and Postgres share: ``?`` marks, ``ON CONFLICT``, ``RETURNING``, ``CASE`` instead
of scalar ``max``. What they do not share is in this protocol: rows in bulk, row locks, the clock.

Order of locks, so that no two transactions wait for each other: ``run``, ``workers``, ``tasks`` by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

LIST_MAX = 500
"""Most values in one list of a statement: both databases bound the number of parameters."""

EVERYTHING = 1 << 62
"""A limit, or a step, that is never reached."""


class Row(Protocol):
    """One row, by position or by column."""

    def __getitem__(self, key: Any, /) -> Any:
        """A value."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """The values in order."""
        ...


class Result(Protocol):
    """What a statement gave. It may still be on its way until it is asked for."""

    def fetchone(self) -> Any:
        """The next row, None at the end."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """The rows that are left."""
        ...


class Transaction(Protocol):
    """A transaction under way. Nothing of it can be seen before the runner has committed it.

    ``for_update``, ``for_share`` and ``skip_locked`` end a SELECT: they keep its rows as they are until
    the commit, against other writers, against changes alone, or leaving out what others keep
    (``for_share_now``: against changes, leaving out). Empty where there is one writer only.
    """

    for_update: str
    for_share: str
    for_share_now: str
    skip_locked: str

    @property
    def now(self) -> float:
        """Seconds since 1970 on the clock that judges leases."""
        ...

    @property
    def moment(self) -> tuple[str, tuple[float, ...]]:
        """SQL for about ``now``, and its values: for who need not wait for the clock's answer."""
        ...

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Result:
        """Run one statement."""
        ...

    def write(self, sql: str, values: Sequence[Any]) -> None:
        """Run a statement whose result nobody reads, by the end of the transaction or the next ``execute``.

        What is written together must not touch the same row.
        """
        ...

    def insert(
        self, table: str, columns: str, rows: Sequence[Sequence[Any]], *, ignore: bool = False
    ) -> None:
        """As ``write``, many rows; ``ignore`` leaves those that are there as they are."""
        ...

    def position(self) -> int:
        """How many writes the ledger has acknowledged."""
        ...


Operation = Callable[[Transaction], T]


class Runner(Protocol):
    """Runs operations as transactions. A future is done when its transaction is durable."""

    @property
    def position(self) -> int:
        """How many writes were acknowledged; never shrinks."""
        ...

    def write(self, operation: Operation[T], *, shares: bool = False) -> Future[T]:
        """Run one that writes; with ``shares`` neighbours may be in the same transaction.

        Raises LedgerError when too many wait already, or the ledger is closed.
        """
        ...

    def read(self, operation: Operation[T]) -> Future[T]:
        """Run one that only reads, all of it as of one moment. Raises LedgerError as ``write``."""
        ...

    def close(self) -> None:
        """Finish what is queued and let go of the store. Idempotent."""
        ...


def marks(values: Sequence[Any]) -> str:
    """``?, ?, ?`` for a list of values."""
    return ", ".join("?" * len(values))


def slices(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Parts short enough for one statement."""
    for start in range(0, len(values), LIST_MAX):
        yield values[start : start + LIST_MAX]
