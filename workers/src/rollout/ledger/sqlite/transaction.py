"""A SQLite connection as the shared SQL sees it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from rollout.ledger.sql.transaction import marks


class SqliteTransaction:
    """One operation on a connection. There is one writer, so rows need no locks."""

    for_update = for_share = for_share_now = skip_locked = ""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock

    @cached_property
    def now(self) -> float:
        """This machine's clock, read once for the whole operation."""
        return self._clock()

    @property
    def moment(self) -> tuple[str, tuple[float, ...]]:
        """The clock is asked at once."""
        return "?", (self.now,)

    def write(self, sql: str, values: Sequence[Any]) -> None:
        """Run one statement, at once."""
        self._connection.execute(sql, values)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run one statement."""
        return self._connection.execute(sql, values)

    def insert(
        self, table: str, columns: str, rows: Sequence[Sequence[Any]], *, ignore: bool = False
    ) -> None:
        """Insert many rows; ``ignore`` leaves those that are there as they are."""
        if rows:
            otherwise = " ON CONFLICT DO NOTHING" if ignore else ""
            self._connection.executemany(
                f"INSERT INTO {table} ({columns}) VALUES ({marks(rows[0])}){otherwise}",
                rows,
            )

    def position(self) -> int:
        """How many writes the ledger has acknowledged."""
        return self._connection.execute("SELECT position FROM run").fetchone()[0]
