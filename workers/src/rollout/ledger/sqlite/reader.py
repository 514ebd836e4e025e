"""Reading a ledger's file beside a live run, or after it.

with LedgerReader(run_dir / "ledger.db") as ledger:
    for view in ledger.samples(step=40, sort="reward"):
        print(view.trajectory.text)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollout.errors import LedgerError
from rollout.ledger.formats import check_readable, list_migrations
from rollout.ledger.sql.reader import Reader
from rollout.ledger.sqlite.opening import read_format
from rollout.ledger.sqlite.readonly import ReadOnlyFile
from rollout.ledger.sqlite.transaction import SqliteTransaction
from rollout.ledger.sqlite.writer import DATABASE_ERRORS, wrap


class LedgerReader(Reader):
    """Read-only views of one ledger file."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise LedgerError(f"there is no ledger at {path}: the run never started, or was moved")
        self._path, self.where = path, str(path)
        try:
            self._file = ReadOnlyFile(path)
            known = len(list_migrations("rollout.ledger.sqlite"))
            self.have = read_format(self._file.tx)
            check_readable(self.where, self.have, known)
            self._require_run()
        except DATABASE_ERRORS as error:
            raise wrap(error, path) from error
        except LedgerError:
            self.close()
            raise

    @property
    def _tx(self) -> SqliteTransaction:
        return SqliteTransaction(self._file.tx, time.time)

    @contextmanager
    def snapshot(self) -> Iterator[SqliteTransaction]:
        """One transaction, in which nothing changes."""
        connection = self._file.tx
        connection.execute("BEGIN")
        with connection:
            yield SqliteTransaction(connection, time.time)

    def _require_run(self) -> None:
        if self._tx.execute("SELECT uid FROM run").fetchone() is None:
            raise LedgerError(
                f"the ledger at {self.where} names no run yet: who made it died before the run began; start it again"
            )

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _translate(self, error: BaseException) -> LedgerError | None:
        return wrap(error, self._path) if isinstance(error, DATABASE_ERRORS) else None
