"""A connection that reads a ledger's file and leaves nothing behind.

SQLite's write-ahead log lies beside the file for as long as somebody writes it. A reader of such a file
takes part in the log; without one the file is read as it is, so that looking at a run that has ended
makes no new files beside it (and works where nothing may be written).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

BUSY_SECONDS = 5.0


class ReadOnlyFile:
    """One ledger's file. Ask for ``tx`` before every query: a writer may have come."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._log = self._path.with_name(f"{self._path.name}-wal")
        self._at_rest = self._is_at_rest()
        self._connection = self._open()

    @property
    def tx(self) -> sqlite3.Connection:
        """The connection; opened anew when somebody has begun to write."""
        if self._at_rest and not self._is_at_rest():
            self._connection.close()
            self._at_rest = False
            self._connection = self._open()
        return self._connection

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _is_at_rest(self) -> bool:
        try:
            return self._log.stat().st_size == 0
        except FileNotFoundError:
            return True

    def _open(self) -> sqlite3.Connection:
        how = "mode=ro&immutable=1" if self._at_rest else "mode=ro"
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?{how}", uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA query_only = ON")
        return connection
