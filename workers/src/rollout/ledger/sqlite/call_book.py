"""The book of a training service: every call on every line, in order, with its answer and its chain value.

A *line* is what calls are ordered in (a model, a sampler), ``seq`` a call's place in it. A call is in the book before it is
acknowledged, its answer before that is given; neither ever changes. *Things* are what calls refer to: sessions, models,
samplers, saved weights, each with its owner.

Refuses what ``opening`` refuses, a book of other bases or another machine's numerics, and one that a newer version wrote.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import msgspec

from rollout.common.atomic_files import fsync_folder
from rollout.errors import LedgerError
from rollout.ledger.formats import check_format
from rollout.ledger.sqlite.opening import (
    check_damage,
    connect,
    lock_beside,
    read_format,
    refuse_network_file_system,
)
from rollout.ledger.sqlite.writer import DATABASE_ERRORS, wrap

FORMAT = 2
READ_FROM = 1
"""The oldest format that readers take as it is: it differs in what owners have spent only."""
SHORT_AT_ONCE = 1024

_SCHEMA = """
CREATE TABLE book (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), identity TEXT NOT NULL, created_at REAL NOT NULL);
CREATE TABLE things (
    place INTEGER PRIMARY KEY, kind TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, body BLOB NOT NULL,
    created_at REAL NOT NULL, UNIQUE (kind, id)
);
CREATE TABLE calls (
    line TEXT NOT NULL, seq INTEGER NOT NULL, digest TEXT NOT NULL, call BLOB NOT NULL, received_at REAL NOT NULL,
    answer BLOB, chain TEXT, answered_at REAL, PRIMARY KEY (line, seq)
) WITHOUT ROWID;
"""

_SPENT = "CREATE TABLE spent (owner TEXT PRIMARY KEY, units INTEGER NOT NULL) WITHOUT ROWID;"
_SPEND = "INSERT INTO spent VALUES (?, ?) ON CONFLICT (owner) DO UPDATE SET units = units + excluded.units"


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedThing:
    """Something that calls refer to, as it was first written."""

    kind: str
    id: str
    owner: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What an owner spends with a call, or, below 0, gets back; in units of the service's choice."""

    owner: str
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedCall:
    """One call; ``answer`` and ``chain`` are None until it is answered (a line without a chain keeps it empty)."""

    line: str
    seq: int
    digest: str
    call: bytes
    answer: bytes | None
    chain: str | None


class CallBook:
    """Owns the file. Its methods may be called from any thread; each returns when what it wrote will last."""

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        """Open or make the book. Raises LedgerError."""
        self._path = path
        self._mutex = threading.Lock()
        refuse_network_file_system(path)
        self._lock: IO[bytes] = lock_beside(path, "service: stop it, or name another --folder")
        try:
            self._connection = connect(path)
            self._prepare(identity)
            fsync_folder(path.parent)
        except DATABASE_ERRORS as error:
            self._lock.close()
            raise wrap(error, path) from error
        except LedgerError:
            self._lock.close()
            raise

    def close(self) -> None:
        """Let go of the file; idempotent."""
        with self._mutex:
            self._connection.close()
            self._lock.close()

    def put(self, thing: BookedThing) -> bool:
        """Write a thing down; False where one of its kind and id is there already, which stays as it is."""
        with self._writing() as connection:
            done = connection.execute(
                "INSERT INTO things (kind, id, owner, body, created_at) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                (thing.kind, thing.id, thing.owner, thing.body, time.time()),
            )
            return done.rowcount == 1

    def things(self) -> list[BookedThing]:
        """Every thing, in the order in which they were written."""
        rows = self._read("SELECT kind, id, owner, body FROM things ORDER BY place")
        return [BookedThing(kind=a, id=b, owner=c, body=d) for a, b, c, d in rows]

    def times(self, kind: str) -> dict[str, float]:
        """When each thing of a kind was written, in seconds since 1970, by its id."""
        rows = self._read("SELECT id, created_at FROM things WHERE kind = ?", (kind,))
        return dict(rows)

    def last_received(self, line: str) -> float | None:
        """When the newest call of a line came, in seconds since 1970; None where none did."""
        return self._read("SELECT max(received_at) FROM calls WHERE line = ?", (line,))[0][0]

    def spent(self) -> dict[str, int]:
        """What each owner has spent with all calls that were ever written down here."""
        return dict(self._read("SELECT owner, units FROM spent"))

    def accept(
        self, line: str, seq: int, digest: str, call: bytes, charge: Charge | None = None
    ) -> Literal["new", "same", "other"]:
        """Write a call down, and what it costs if it is new; ``same`` and ``other`` say what stands in its place already."""
        with self._writing() as connection:
            done = connection.execute(
                "INSERT INTO calls (line, seq, digest, call, received_at) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                (line, seq, digest, call, time.time()),
            )
            if done.rowcount == 1:
                _spend(connection, charge)
                return "new"
            found = connection.execute(
                "SELECT digest FROM calls WHERE line = ? AND seq = ?", (line, seq)
            ).fetchone()
            return "same" if found[0] == digest else "other"

    def answer(
        self, line: str, seq: int, answer: bytes, chain: str, charge: Charge | None = None
    ) -> None:
        """Write down what a call came to, and what it cost beside. Raises LedgerError where it is not waiting for that."""
        with self._writing() as connection:
            done = connection.execute(
                "UPDATE calls SET answer = ?, chain = ?, answered_at = ? WHERE line = ? AND seq = ? AND answer IS NULL",
                (answer, chain, time.time(), line, seq),
            )
            if done.rowcount != 1:
                raise LedgerError(f"call {seq} of {line} in {self._path} has its answer already")
            _spend(connection, charge)

    def find(self, line: str, seq: int, *, whole: bool = True) -> BookedCall | None:
        """One call; not ``whole``: its answer, and of the call itself no bytes, which can be many."""
        return next(iter(self._calls("line = ? AND seq = ?", (line, seq), whole=whole)), None)

    def calls(self, line: str, *, after: int = 0, at_most: int = 1) -> list[BookedCall]:
        """The next calls of a line, in order."""
        return self._calls("line = ? AND seq > ? ORDER BY seq LIMIT ?", (line, after, at_most))

    def last_answered(self, line: str) -> BookedCall | None:
        """The last call of a line that has its answer; None where none has."""
        where = "line = ? AND answer IS NOT NULL ORDER BY seq DESC LIMIT 1"
        return next(iter(self._calls(where, (line,))), None)

    def unanswered(self) -> list[tuple[str, int]]:
        """Lines and places of calls without an answer, in order."""
        rows = self._read("SELECT line, seq FROM calls WHERE answer IS NULL ORDER BY line, seq")
        return [(line, seq) for line, seq in rows]

    def short_calls(self, marks: bytes, bytes_max: int) -> Iterator[bytes]:
        """Calls of at most so many bytes that have ``marks`` in them, some at a time; longer ones are not read."""
        line, seq = "", -1
        sql = (
            "SELECT line, seq, call FROM calls WHERE (line, seq) > (?, ?) AND length(call) <= ?"
            " AND instr(call, ?) > 0 ORDER BY line, seq LIMIT ?"
        )
        while rows := self._read(sql, (line, seq, bytes_max, marks, SHORT_AT_ONCE)):
            yield from (row[2] for row in rows)
            line, seq = rows[-1][:2]

    def _calls(
        self, where: str, values: tuple[str | int, ...], *, whole: bool = True
    ) -> list[BookedCall]:
        call = "call" if whole else "x''"
        names = f"line, seq, digest, {call}, answer, chain"
        return [
            BookedCall(line=a, seq=b, digest=c, call=d, answer=e, chain=f)
            for a, b, c, d, e, f in self._read(f"SELECT {names} FROM calls WHERE {where}", values)
        ]

    def _read(self, sql: str, values: tuple[str | int | bytes, ...] = ()) -> list[tuple]:  # pyrefly: ignore[implicit-any] - columns differ
        with self._mutex:
            try:
                return self._connection.execute(sql, values).fetchall()
            except DATABASE_ERRORS as error:
                raise wrap(error, self._path) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
                self._connection.execute("COMMIT")
            except DATABASE_ERRORS as error:
                raise wrap(error, self._path) from error

    def _prepare(self, identity: Mapping[str, str]) -> None:
        check_damage(self._connection, self._path)
        have = read_format(self._connection)
        check_format(str(self._path), have, FORMAT)
        if have < FORMAT:
            tables = _SPENT if have else _SCHEMA + _SPENT
            self._connection.executescript(
                f"BEGIN IMMEDIATE;{tables}PRAGMA user_version = {FORMAT};COMMIT;"
            )
        said = msgspec.json.encode(dict(identity), order="sorted").decode()
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO book VALUES (1, ?, ?) ON CONFLICT DO NOTHING", (said, time.time())
            )
            found = connection.execute("SELECT identity FROM book").fetchone()[0]
        if found != said:
            raise LedgerError(_differing(self._path, msgspec.json.decode(found), identity))


def _spend(connection: sqlite3.Connection, charge: Charge | None) -> None:
    if charge is not None and charge.units:
        connection.execute(_SPEND, (charge.owner, charge.units))


def _differing(path: Path, known: Mapping[str, str], given: Mapping[str, str]) -> str:
    names = [name for name in sorted({*known, *given}) if known.get(name) != given.get(name)]
    parts = [
        f"{name} was {known.get(name, 'absent')}, is {given.get(name, 'absent')}" for name in names
    ]
    return (
        f"{path} was written by another service, whose calls cannot be made again here to the same numbers:"
        f" {'; '.join(parts)}. Start it as it was, or name another --folder"
    )
