"""A Postgres connection as the shared SQL sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, LiteralString, cast

from psycopg import Connection, Cursor

from rollout.ledger.sql.transaction import marks, slices

Types = Mapping[str, Mapping[str, str]]
"""The type of every column, by table."""

Connected = Connection[Any]

SERVER_CLOCK = "extract(epoch FROM clock_timestamp())::float8"
"""The clock that judges leases, as SQL."""

READS = ("SELECT", "WITH")
"""How statements begin that change nothing."""

VALUES_MAX = 30_000
"""Most values in one statement; Postgres takes 65,535."""


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
    for_share_now = " FOR SHARE SKIP LOCKED"
    skip_locked = " FOR UPDATE SKIP LOCKED"

    def __init__(self, connection: Connected, clock: str, types: Types) -> None:
        """``clock`` is SQL."""
        self._connection = connection
        self._types = types
        self._clock = clock
        self._writes: list[tuple[str, Sequence[Any]]] = []
        self.changed = False

    @cached_property
    def now(self) -> float:
        """The server's clock, read once for the whole transaction."""
        return ask(self._connection, f"SELECT {self._clock}")[0]

    @property
    def moment(self) -> tuple[str, tuple[float, ...]]:
        """The clock as SQL: nothing is waited for."""
        return self._clock, ()

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor[NamedRow]:
        """Run one statement, after what was to be written before."""
        self.flush()
        self.changed = self.changed or not sql.startswith(READS)
        return self._connection.execute(_translate(sql), [_plain(value) for value in values])

    def write(self, sql: str, values: Sequence[Any]) -> None:
        """Keep a statement back, to be sent with others as one."""
        if sum(len(some) for _, some in self._writes) + len(values) > VALUES_MAX:
            self.flush()
        self.changed = True
        self._writes.append((sql, values))

    def flush(self) -> None:
        """Send what was kept back as one statement; each part sees what was there before all of them."""
        writes, self._writes = self._writes, []
        if not writes:
            return
        parts = [f"w{place} AS ({sql})" for place, (sql, _) in enumerate(writes[:-1])]
        before = f"WITH {', '.join(parts)} " if parts else ""
        values = [_plain(value) for _, some in writes for value in some]
        self._connection.execute(_translate(before + writes[-1][0]), values)

    def insert(
        self, table: str, columns: str, rows: Sequence[Sequence[Any]], *, ignore: bool = False
    ) -> None:
        """Write many rows as few statements; ``ignore`` leaves those that are there as they are."""
        if not rows:
            return
        otherwise = " ON CONFLICT DO NOTHING" if ignore else ""
        for some in slices(rows):
            source, values = self._source(table, columns, some)
            self.write(f"INSERT INTO {table} ({columns}) {source}{otherwise}", values)

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
        self.flush()
        return ask(
            self._connection,
            "SELECT position + (SELECT coalesce(sum(writes), 0) FROM receipts)::int8 FROM ledger",
        )[0]


def _plain(value: Any) -> Any:
    if isinstance(value, str) and "\0" in value:
        return value.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return value
