"""A Postgres connection as the shared SQL sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, LiteralString, cast

from psycopg import Connection, Cursor

from rollout.ledger.sql.transaction import marks, slices

Types = Mapping[str, Mapping[str, str]]
"""The type of every column, by table."""

Connected = Connection[Any]


class NamedRow(tuple[Any, ...]):
    """Values by position or by column."""

    __slots__ = ()
    places: Mapping[str, int]

    def __getitem__(self, key: Any, /) -> Any:
        """A value."""
        return tuple.__getitem__(self, self.places[key] if isinstance(key, str) else key)


@lru_cache(maxsize=256)
def _row_type(names: tuple[str, ...]) -> type[NamedRow]:
    places = {name: place for place, name in enumerate(names)}
    return type("Row", (NamedRow,), {"places": places, "__slots__": ()})


def named_rows(cursor: Cursor[Any]) -> Callable[[Sequence[Any]], NamedRow]:
    """Psycopg's row factory for ``NamedRow``."""
    return _row_type(tuple(column.name for column in cursor.description or ()))


@lru_cache(maxsize=512)
def _translate(sql: str) -> LiteralString:
    """Our marks as psycopg's. No statement of ours holds a question mark or a percent sign."""
    return cast("LiteralString", sql.replace("?", "%s"))


def ask(connection: Connected, sql: str, values: Sequence[Any] = ()) -> NamedRow:
    """The row of a statement that always gives one."""
    row = connection.execute(cast("LiteralString", sql), values or None).fetchone()
    assert row is not None, f"no row: {sql}"
    return row


class PostgresTransaction:
    """One transaction under way, in a pipeline: only what is read is waited for.

    ``changed`` tells whether it was asked to write anything.
    """

    for_update = " FOR UPDATE"
    for_share = " FOR SHARE"
    skip_locked = " FOR UPDATE SKIP LOCKED"

    def __init__(self, connection: Connected, now: float, types: Types) -> None:
        self._connection = connection
        self._types = types
        self.now = now
        self.changed = False

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor[NamedRow]:
        """Run one statement."""
        self.changed = self.changed or not sql.startswith("SELECT")
        return self._connection.execute(_translate(sql), [_plain(value) for value in values])

    def insert(
        self, table: str, columns: str, rows: Sequence[Sequence[Any]], *, ignore: bool = False
    ) -> None:
        """Insert many rows as few statements; ``ignore`` leaves those that are there as they are."""
        if not rows:
            return
        otherwise = " ON CONFLICT DO NOTHING" if ignore else ""
        for some in slices(rows):
            source, values = self._source(table, columns, some)
            self.execute(f"INSERT INTO {table} ({columns}) {source}{otherwise}", values)

    def _source(
        self, table: str, columns: str, rows: Sequence[Sequence[Any]]
    ) -> tuple[str, Sequence[Any]]:
        """Rows as SQL: one array a column, which is read fastest; bytes one by one, copied least."""
        types = [self._types[table][name] for name in columns.split(", ")]
        if "bytea" in types:
            row = f"({marks(types)})"
            return f"VALUES {', '.join([row] * len(rows))}", [
                value for row in rows for value in row
            ]
        arrays = ", ".join(f"%b::{kind}[]" for kind in types)
        return f"SELECT * FROM unnest({arrays})", [
            list(map(_plain, column)) for column in zip(*rows, strict=True)
        ]

    def position(self) -> int:
        """How many writes the ledger has acknowledged."""
        return ask(
            self._connection,
            "SELECT position + (SELECT coalesce(sum(writes), 0) FROM receipts)::int8 FROM ledger",
        )[0]


def _plain(value: Any) -> Any:
    if isinstance(value, str) and "\0" in value:
        return value.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return value
