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


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 by the machine's clock of now, counted on steadily from here.

    The machine's own clock may be set by hours, either way: live leases would all run out, or those of the
    dead never. Leases of an earlier life are armed again when a coordinator opens.
    """
    began = time.time() - time.monotonic()
    return lambda: began + time.monotonic()


class SqliteLedger(SqlLedger):
    """One run's ledger in one file; a process has it alone.

    ``clock`` is what leases are judged by; None: a steady one.
    """

    def __init__(
        self,
        path: Path,
        identity: RunIdentity,
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        connection, self._lock = open_connection(path, identity)
        connection.row_factory = sqlite3.Row
        self._writer = Writer(connection, path, clock or steady_clock())
        super().__init__(identity, limits, self._writer)

    async def close(self) -> None:
        """See the contract."""
        await super().close()
        self._lock.close()
