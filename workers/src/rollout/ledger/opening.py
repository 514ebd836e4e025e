"""A run's ledger where its manifest says: a file in the run's folder, or a Postgres database.

``storage.ledger.postgres`` names a secret; whoever starts the coordinator puts its value into
``ROLLOUT_LEDGER_DSN`` of that process alone. Those who look at a run set it for themselves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rollout.errors import SpecError
from rollout.ledger.contract import Ledger
from rollout.ledger.records import Limits, RunIdentity
from rollout.ledger.sql.reader import Reader
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.ledger.sqlite.reader import LedgerReader
from rollout_api.v1alpha1.storage import Storage

DSN_VARIABLE = "ROLLOUT_LEDGER_DSN"


def is_in_postgres(storage: Storage | None) -> bool:
    """Whether a run keeps its ledger in a database."""
    ledger = None if storage is None else storage.ledger
    return ledger is not None and ledger.postgres is not None


def require_ledger(storage: Storage | None) -> None:
    """Raises SpecError when the ledger's connection string, or its client, is missing here."""
    if is_in_postgres(storage):
        read_dsn(os.environ)


def open_ledger(
    storage: Storage | None, path: Path, identity: RunIdentity, limits: Limits
) -> Ledger:
    """The run's ledger, for its one coordinator. Raises SpecError or LedgerError."""
    if not is_in_postgres(storage):
        return SqliteLedger(path, identity, limits)
    dsn = read_dsn(os.environ)
    from rollout.ledger.postgres.ledger import PostgresLedger

    return PostgresLedger(dsn, identity, limits)


def open_reader(storage: Storage | None, path: Path, uid: str) -> Reader:
    """The run's ledger, for people and reports. Raises SpecError or LedgerError."""
    if not is_in_postgres(storage):
        return LedgerReader(path)
    dsn = read_dsn(os.environ)
    from rollout.ledger.postgres.reader import PostgresReader

    return PostgresReader(dsn, uid)


def read_dsn(environment: Mapping[str, str]) -> str:
    """The connection string. Raises SpecError when it is not there, or its client is not installed."""
    try:
        import psycopg_pool
    except ImportError as error:
        raise SpecError(
            "storage.ledger.postgres: its client is not installed here: pip install"
            " 'rollout-rl[postgres]'"
        ) from error
    del psycopg_pool
    dsn = environment.get(DSN_VARIABLE, "").strip()
    if not dsn:
        raise SpecError(
            f"storage.ledger.postgres: {DSN_VARIABLE} is not set: on one machine the connection string"
            f" comes from the environment, as in {DSN_VARIABLE}=postgresql://user:password@host/database"
        )
    return dsn
