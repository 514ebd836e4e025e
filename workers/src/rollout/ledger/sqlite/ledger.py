"""``SqliteLedger``: the ledger contract on one file. See ``rollout.ledger.contract`` for the promises."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from rollout.ledger.records import Limits, RunIdentity
from rollout.ledger.sql.ledger import SqlLedger
from rollout.ledger.sqlite.opening import open_connection
from rollout.ledger.sqlite.writer import Writer


class SqliteLedger(SqlLedger):
    """One run's ledger in one file; a process has it alone. ``clock`` is what leases are judged by."""

    def __init__(
        self,
        path: Path,
        identity: RunIdentity,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        connection, self._lock = open_connection(path, identity)
        connection.row_factory = sqlite3.Row
        self._writer = Writer(connection, path, clock)
        super().__init__(identity, limits, self._writer)

    async def close(self) -> None:
        """See the contract."""
        await super().close()
        self._lock.close()
