"""Where a run's ledger lies in Postgres: connection string, schema, session settings; never a password."""

from __future__ import annotations

import re
from dataclasses import dataclass

import psycopg
from blake3 import blake3
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rollout.errors import LedgerError

NAME_BYTES_MAX = 63
"""Postgres cuts longer names."""

CONNECT_SECONDS = 5
STATEMENT_SECONDS = 30
"""Longest statement, and longest wait for a row: more is a fault, and is tried again."""
IDLE_SECONDS = 10
"""Longest silence inside a transaction: a coordinator that hangs must not keep its rows."""

SESSION = {
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "lock_timeout": f"{STATEMENT_SECONDS // 2}s",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
    "client_encoding": "UTF8",
}

NETWORK = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "rollout",
    "target_session_attrs": "read-write",
}
"""libpq settings that the connection string may override."""


@dataclass(frozen=True, slots=True)
class Address:
    """A database and the run's schema in it."""

    dsn: str
    schema: str

    @property
    def where(self) -> str:
        """The place as messages name it: host, port, database and schema."""
        parts = conninfo_to_dict(self.dsn)
        host = parts.get("host") or parts.get("hostaddr") or "local socket"
        return f"{host}:{parts.get('port', 5432)}/{parts.get('dbname', '')} schema {self.schema}"

    @property
    def key(self) -> int:
        """The number of this ledger's advisory lock: the same for every coordinator of the run."""
        digest = blake3(f"rollout ledger {self.schema}".encode()).digest(8)
        return int.from_bytes(digest, "big", signed=True)


def find_address(dsn: str, uid: str) -> Address:
    """The schema of a run in the database of ``dsn``. Raises LedgerError when it cannot be read."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # The parser's own message quotes the string, and with it the password.
        raise LedgerError(
            "the ledger's connection string cannot be read: expected postgresql://user@host/database"
            " or libpq's key=value form; correct the secret named in storage.ledger.postgres"
        ) from None
    schema = schema_of(uid)
    session = {"search_path": f'"{schema}"', **SESSION}
    options = " ".join(f"-c {name}={value}" for name, value in session.items())
    given["options"] = f"{options} {given.get('options', '')}".strip()
    return Address(make_conninfo("", **{**NETWORK, **given}), schema)


def schema_of(uid: str) -> str:
    """``rollout_<uid>`` with what Postgres cannot spell replaced, unique all the same."""
    plain = re.sub(r"[^a-z0-9]", "_", uid.lower())
    name = f"rollout_{plain}"
    spelled = plain.replace("_", "-") == uid
    if spelled and len(name) <= NAME_BYTES_MAX:
        return name
    return f"{name[: NAME_BYTES_MAX - 17]}_{blake3(uid.encode()).hexdigest(8)}"
