"""``PostgresLedger``: the ledger contract in one schema of a Postgres database."""

from __future__ import annotations

import time

import psycopg

from rollout.errors import LedgerSuperseded, LedgerUnreachable
from rollout.ledger.postgres.address import Address, find_address
from rollout.ledger.postgres.executor import PAUSE_SECONDS_MAX, Executor, ExecutorSettings, Term
from rollout.ledger.postgres.failures import is_transient, wrap
from rollout.ledger.postgres.opening import (
    add_receipts,
    connect,
    open_schema,
    read_term,
    read_types,
)
from rollout.ledger.records import Limits, RunIdentity
from rollout.ledger.sql.ledger import SqlLedger


class PostgresLedger(SqlLedger):
    """One run's ledger. Opening takes it over: an older coordinator's writes are refused from then on.

    With ``term`` it joins the coordinator of that term instead, for more processes of one coordinator.
    """

    def __init__(
        self,
        dsn: str,
        identity: RunIdentity,
        limits: Limits | None = None,
        settings: ExecutorSettings | None = None,
        *,
        term: int | None = None,
    ) -> None:
        address, settings = find_address(dsn, identity.uid), settings or ExecutorSettings()
        hold = _take_over(address, identity, settings, term)
        self.term, self.schema = hold.term, address.schema
        self._lanes = Executor(address, hold, settings)
        super().__init__(identity, limits, self._lanes)


def _take_over(
    address: Address, identity: RunIdentity, settings: ExecutorSettings, term: int | None
) -> Term:
    """Open the schema, trying again while the server is away. Raises LedgerError."""
    began = time.monotonic()
    while True:
        try:
            return _open_once(address, identity, settings.lanes, term)
        except psycopg.Error as error:
            if not is_transient(error):
                raise wrap(error, address) from error
            if time.monotonic() - began > settings.patience_seconds:
                raise LedgerUnreachable(
                    f"the ledger's server at {address.where} could not be reached for"
                    f" {settings.patience_seconds:.0f} s ({' '.join(str(error).split())}): start it, or"
                    " correct the connection string"
                ) from error
        time.sleep(PAUSE_SECONDS_MAX)


def _open_once(address: Address, identity: RunIdentity, num_lanes: int, term: int | None) -> Term:
    with connect(address) as connection:
        if term is None:
            have, position = open_schema(connection, address, identity)
        else:
            have, position = read_term(connection)
            if have != term:
                raise LedgerSuperseded(
                    f"the ledger at {address.where} is in term {have}, not {term}"
                )
        lanes = add_receipts(connection, num_lanes)
        return Term(term=have, position=position, lanes=lanes, types=read_types(connection))
