"""Opening a ledger's schema: its migrations, whose it is, and the term that fences older coordinators.

All of it is one transaction under the ledger's lock. Every connection of a coordinator shares that lock, so
no older one is in the middle of a write, and a later one of it sees the new term.
"""

from __future__ import annotations

import secrets
import time
from typing import LiteralString, cast

import psycopg
from psycopg import Connection, sql

from rollout.errors import LedgerError
from rollout.ledger.formats import check_format, check_identity, list_migrations
from rollout.ledger.postgres.address import STATEMENT_SECONDS, Address
from rollout.ledger.postgres.transaction import (
    Connected,
    Types,
    ask,
    named_rows,
)
from rollout.ledger.records import RunIdentity

WEAK_COMMITS = ("off",)
LOCK_PAUSE_SECONDS = 0.01


def connect(address: Address) -> Connected:
    """A connection of this ledger. Raises psycopg.Error."""
    connection = psycopg.connect(address.dsn, autocommit=True, row_factory=named_rows)
    prepare(connection)
    return connection


def prepare(connection: Connection) -> None:
    """What was acknowledged must survive: a server that answers before its disk is made to wait.

    A server set to ``fsync = off`` cannot be helped.
    """
    found = connection.execute("SHOW synchronous_commit").fetchone()
    if found is not None and found[0] in WEAK_COMMITS:
        connection.execute("SET synchronous_commit = on")


def open_schema(connection: Connected, address: Address, identity: RunIdentity) -> tuple[int, int]:
    """Make or check the schema and begin a new term; returns the term and the position.

    Raises LedgerError, or LedgerBelongsToAnotherRun when it names another run or spec.
    """
    _take_lock(connection, address)
    with connection.transaction():
        connection.execute(
            sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(address.schema))
        )
        _migrate(connection, address)
        _claim_identity(connection, address, identity)
        row = ask(
            connection,
            "UPDATE ledger SET term = term + 1, position = position +"
            " (SELECT coalesce(sum(writes), 0) FROM receipts)::int8 RETURNING term, position",
        )
        connection.execute("DELETE FROM receipts")
    connection.execute("SELECT pg_advisory_unlock(%s)", (address.key,))
    return row["term"], row["position"]


def _take_lock(connection: Connected, address: Address) -> None:
    """Hold the ledger's lock alone: end the connections of older coordinators, and again if they return."""
    high, low = (address.key >> 32) & 0xFFFFFFFF, address.key & 0xFFFFFFFF
    end = time.monotonic() + STATEMENT_SECONDS
    while not ask(connection, "SELECT pg_try_advisory_lock(%s)", (address.key,))[0]:
        if time.monotonic() > end:
            raise LedgerError(
                f"the lock of the ledger at {address.where} could not be had for {STATEMENT_SECONDS} s:"
                " another coordinator is opening it, or connects under a role that ours may not end"
            )
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
            " AND classid::bigint = %s AND objid::bigint = %s AND mode = 'ShareLock' AND granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            (high, low),
        )
        time.sleep(LOCK_PAUSE_SECONDS)


def read_term(connection: Connected) -> tuple[int, int]:
    """The present term and position."""
    row = ask(connection, "SELECT term, position FROM ledger")
    return row["term"], row["position"]


def add_receipts(connection: Connected, count: int) -> tuple[str, ...]:
    """Name lanes, each with a row before its first commit, so that its lock can be waited for."""
    prefix = secrets.token_hex(4)
    lanes = tuple(f"{prefix}-{number}" for number in range(count))
    connection.execute("INSERT INTO receipts SELECT unnest(%s::text[]), ''", (list(lanes),))
    return lanes


def read_types(connection: Connected) -> Types:
    """The type of every column of the schema, by table."""
    found: dict[str, dict[str, str]] = {}
    rows = connection.execute(
        "SELECT c.relname, a.attname, format_type(a.atttypid, NULL) FROM pg_attribute a JOIN pg_class c"
        " ON c.oid = a.attrelid WHERE c.relnamespace = current_schema()::regnamespace"
        " AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped"
    )
    for table, column, kind in rows:
        found.setdefault(table, {})[column] = kind
    return found


def _migrate(connection: Connected, address: Address) -> None:
    scripts = list_migrations("rollout.ledger.postgres")
    connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
    have = read_format(connection)
    check_format(f"at {address.where}", have, len(scripts))
    for number, script in enumerate(scripts[have:], start=have + 1):
        connection.execute(cast("LiteralString", script.read_text()))
        connection.execute("INSERT INTO schema_version VALUES (%s)", (number,))


def read_format(connection: Connected) -> int:
    """The ledger's format; 0 for an empty schema."""
    return ask(connection, "SELECT max(version) FROM schema_version")[0] or 0


def _claim_identity(connection: Connected, address: Address, identity: RunIdentity) -> None:
    found = connection.execute("SELECT uid, name, spec_digest, identity_format FROM run").fetchone()
    if found is None:
        connection.execute(
            "INSERT INTO run (single, uid, name, spec_digest, created_at, identity_format)"
            " VALUES (1, %s, %s, %s, extract(epoch FROM clock_timestamp()), %s)",
            (identity.uid, identity.name, identity.spec_digest, identity.identity_format),
        )
        connection.execute(
            "INSERT INTO lineages VALUES (0, NULL, 0, 'start', extract(epoch FROM clock_timestamp()))"
        )
        connection.execute("INSERT INTO ledger VALUES (1, 0, 0)")
        return
    known = RunIdentity(
        uid=found["uid"],
        name=found["name"],
        spec_digest=found["spec_digest"],
        identity_format=found["identity_format"],
    )
    check_identity(f"at {address.where}", known, identity, "another database")
    if known.identity_format == 0 != identity.identity_format:
        connection.execute("UPDATE run SET identity_format = %s", (identity.identity_format,))
