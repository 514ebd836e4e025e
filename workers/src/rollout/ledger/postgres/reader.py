"""Reading a run's schema beside a live run, or after it; from a replica, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors
from psycopg.conninfo import make_conninfo

from rollout.errors import LedgerError
from rollout.ledger.formats import check_readable, list_migrations
from rollout.ledger.postgres.address import find_address
from rollout.ledger.postgres.failures import wrap
from rollout.ledger.postgres.opening import read_format
from rollout.ledger.postgres.transaction import (
    SERVER_CLOCK,
    PostgresTransaction,
    named_rows,
)
from rollout.ledger.sql.reader import Reader


class PostgresReader(Reader):
    """Read-only views of one run's ledger. Raises LedgerError when it is not there."""

    def __init__(self, dsn: str, uid: str) -> None:
        self._address = find_address(dsn, uid)
        self.where = self._address.where
        try:
            self._connection = psycopg.connect(
                make_conninfo(self._address.dsn, target_session_attrs="any"),
                autocommit=True,
                row_factory=named_rows,
            )
            self._connection.execute("SET default_transaction_read_only = on")
            self._connection.execute("SELECT uid FROM run")
            known = len(list_migrations("rollout.ledger.postgres"))
            self.have = read_format(self._connection)
            check_readable(f"at {self.where}", self.have, known)
        except errors.UndefinedTable as error:
            self.close()
            raise LedgerError(
                f"there is no ledger at {self.where}: the run never started, or was deleted"
            ) from error
        except psycopg.Error as error:
            raise wrap(error, self._address) from error
        except LedgerError:
            self.close()
            raise

    @property
    def _tx(self) -> PostgresTransaction:
        return PostgresTransaction(self._connection, SERVER_CLOCK, {})

    @contextmanager
    def snapshot(self) -> Iterator[PostgresTransaction]:
        """One transaction, in which nothing changes."""
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        try:
            yield self._tx
        finally:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def _translate(self, error: BaseException) -> LedgerError | None:
        return wrap(error, self._address) if isinstance(error, psycopg.Error) else None
