"""What an error of Postgres means: refused, full, broken, or worth another try."""

from __future__ import annotations

import psycopg
from psycopg import errors

from rollout.errors import LedgerBroken, LedgerError, LedgerFull
from rollout.ledger.postgres.address import Address

TRANSIENT = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.LockNotAvailable,
    errors.QueryCanceled,
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.TooManyConnections,
    errors.IdleInTransactionSessionTimeout,
    errors.ReadOnlySqlTransaction,
)
"""Errors that pass: other transactions, a server that restarts, a standby before its promotion."""

REFUSED = (
    errors.InvalidPassword,
    errors.InvalidAuthorizationSpecification,
    errors.InvalidCatalogName,
    errors.InsufficientPrivilege,
)


def is_transient(error: psycopg.Error) -> bool:
    """Whether the same transaction may succeed when it is tried again."""
    if isinstance(error, TRANSIENT):
        return True
    # Lost connections have no SQLSTATE, or one of class 08.
    lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    state = error.sqlstate or ""
    return lost and (state.startswith("08") or (not state and not _is_refusal(error)))


def _is_refusal(error: psycopg.Error) -> bool:
    """Libpq tells why it was turned away in words alone."""
    said = str(error)
    words = (
        "password authentication failed",
        "no password supplied",
        "does not exist",
        "pg_hba.conf",
    )
    return any(word in said for word in words)


def wrap(error: psycopg.Error, address: Address) -> LedgerError:
    """The error of ours that says what happened, where, and what to do."""
    said = " ".join(str(error).split())
    if isinstance(error, errors.IntegrityError):
        return LedgerError(f"the ledger refused a write: {said}")
    if isinstance(error, errors.DiskFull):
        return LedgerFull(
            f"no space left for the ledger at {address.where}: nothing committed is lost; free space"
            " on the server (old runs' schemas, other databases), then resume the run"
        )
    if isinstance(error, (errors.DataCorrupted, errors.IndexCorrupted, errors.IoError)):
        return LedgerBroken(f"the server of the ledger at {address.where} reports damage: {said}")
    if isinstance(error, REFUSED) or _is_refusal(error):
        return LedgerError(
            f"the ledger's server turned us away ({said}): correct the connection string, or grant"
            f" CREATE on the database to its user; the ledger is {address.where}"
        )
    return LedgerError(f"the ledger at {address.where} could not be used ({said})")
