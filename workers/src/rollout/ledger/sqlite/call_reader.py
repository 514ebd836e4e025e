"""Reading the book of a training service beside it, or after it: nothing is written, and one call at a time is in memory.

Refuses a book of another format, and what is no book. What a call's bytes mean is the service's to say.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from rollout.errors import LedgerError
from rollout.ledger.formats import check_format
from rollout.ledger.sqlite.call_book import FORMAT, READ_FROM, BookedCall, BookedThing
from rollout.ledger.sqlite.opening import read_format
from rollout.ledger.sqlite.readonly import ReadOnlyFile
from rollout.ledger.sqlite.writer import DATABASE_ERRORS, wrap

THINGS_AT_ONCE = 64
HEADS_AT_ONCE = 1024
HEAD_BYTES = 64
"""Of a call's and an answer's bytes: enough for the kind that stands first in them."""

DATED = "line, seq, digest, call, answer, chain, received_at, answered_at"
"""Columns of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatedCall:
    """A call as it is booked, and when (seconds since 1970); ``answered_at`` None: not yet."""

    booked: BookedCall
    received_at: float
    answered_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatedThing:
    """A thing as it is booked, and when (seconds since 1970)."""

    booked: BookedThing
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHead:
    """How a call and its answer begin; ``answer`` None: not answered yet."""

    seq: int
    call: bytes
    answer: bytes | None


class CallBookReader:
    """Owns a connection that cannot write. One thread."""

    def __init__(self, path: Path) -> None:
        """Open the book. Raises LedgerError."""
        if not path.is_file():
            raise LedgerError(f"there is no book of calls at {path}: no service has run there")
        self.path = path
        try:
            self._file = ReadOnlyFile(path)
        except DATABASE_ERRORS as error:
            raise wrap(error, path) from error
        try:
            self._check()
        except DATABASE_ERRORS as error:
            self.close()
            raise wrap(error, path) from error
        except LedgerError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def identity(self) -> dict[str, str]:
        """What the numbers of the book depend on. Raises LedgerError."""
        row = self._one("SELECT identity FROM book")
        if row is None:
            raise LedgerError(f"{self.path} names no service yet: start the service again")
        try:
            return msgspec.json.decode(row[0], type=dict[str, str])
        except msgspec.MsgspecError as error:
            raise LedgerError(
                f"{self.path} is damaged: its identity is no object ({error})"
            ) from error

    def things(self, kind: str) -> Iterator[BookedThing]:
        """Every thing of a kind, oldest first."""
        place = 0
        names = "place, kind, id, owner, body"
        sql = f"SELECT {names} FROM things WHERE place > ? AND kind = ? ORDER BY place LIMIT ?"
        while rows := self._all(sql, (place, kind, THINGS_AT_ONCE)):
            for row in rows:
                yield BookedThing(kind=row[1], id=row[2], owner=row[3], body=row[4])
            place = rows[-1][0]

    def thing(self, kind: str, name: str) -> BookedThing | None:
        """One thing."""
        sql = "SELECT kind, id, owner, body FROM things WHERE kind = ? AND id = ?"
        row = self._one(sql, (kind, name))
        return (
            None if row is None else BookedThing(kind=row[0], id=row[1], owner=row[2], body=row[3])
        )

    def dated(self, kind: str) -> Iterator[DatedThing]:
        """Every thing of a kind by its id, and only those are looked at."""
        last = ""
        names = "kind, id, owner, body, created_at"
        sql = f"SELECT {names} FROM things WHERE kind = ? AND id > ? ORDER BY id LIMIT ?"
        while rows := self._all(sql, (kind, last, THINGS_AT_ONCE)):
            for row in rows:
                thing = BookedThing(kind=row[0], id=row[1], owner=row[2], body=row[3])
                yield DatedThing(booked=thing, created_at=row[4])
            last = rows[-1][1]

    def under(
        self, kinds: tuple[str, str], start: str, skip: int, at_most: int
    ) -> list[DatedThing]:
        """Things of two kinds whose ids begin with ``start``, newest first."""
        rows = self._all(
            "SELECT kind, id, owner, body, created_at FROM things WHERE kind IN (?, ?) AND id >= ? AND id < ?"
            " ORDER BY place DESC LIMIT ? OFFSET ?",
            (*kinds, start, start[:-1] + chr(ord(start[-1]) + 1), at_most, skip),
        )
        return [
            DatedThing(booked=BookedThing(kind=a, id=b, owner=c, body=d), created_at=e)
            for a, b, c, d, e in map(tuple, rows)
        ]

    def created_at(self, kind: str, name: str) -> float | None:
        """When a thing was written, in seconds since 1970; None where there is none."""
        row = self._one("SELECT created_at FROM things WHERE kind = ? AND id = ?", (kind, name))
        return None if row is None else row[0]

    def with_part(self, kind: str, part: bytes, but: str, at_most: int) -> list[BookedThing]:
        """Things of a kind whose body has ``part`` in it and whose id has ``but`` not, newest first."""
        rows = self._all(
            "SELECT kind, id, owner, body FROM things WHERE kind = ? AND instr(id, ?) = 0 AND instr(body, ?)"
            " ORDER BY place DESC LIMIT ?",
            (kind, but, part, at_most),
        )
        return [BookedThing(kind=a, id=b, owner=c, body=d) for a, b, c, d in map(tuple, rows)]

    def last(self, line: str) -> int | None:
        """The highest place of a line; None where it has no call."""
        row = self._one("SELECT max(seq) FROM calls WHERE line = ?", (line,))
        return None if row is None else row[0]

    def last_answered(self, line: str) -> BookedCall | None:
        """The answered call with the highest place, without what was asked and answered; looks at those behind it one by one."""
        sql = "SELECT line, seq, digest, chain FROM calls WHERE line = ? AND answer IS NOT NULL ORDER BY seq DESC LIMIT 1"
        row = self._one(sql, (line,))
        if row is None:
            return None
        return BookedCall(
            line=row[0], seq=row[1], digest=row[2], call=b"", answer=b"", chain=row[3]
        )

    def chain_at(self, line: str, seq: int) -> str | None:
        """The chain value behind a call; None where there is none."""
        row = self._one("SELECT chain FROM calls WHERE line = ? AND seq = ?", (line, seq))
        return None if row is None else row[0]

    def places(self, line: str, after: int, at_most: int) -> list[int]:
        """The next places of a line that hold a call."""
        sql = "SELECT seq FROM calls WHERE line = ? AND seq > ? ORDER BY seq LIMIT ?"
        return [row[0] for row in self._all(sql, (line, after, at_most))]

    def each_back(self, line: str, before: int) -> Iterator[DatedCall]:
        """The calls of a line from the one before ``before`` down, each read when it is its turn."""
        while (found := self._dated("seq < ? ORDER BY seq DESC LIMIT 1", line, before)) is not None:
            yield found
            before = found.booked.seq

    def find_dated(self, line: str, seq: int) -> DatedCall | None:
        """One call, and when it came and was answered."""
        return self._dated("seq = ?", line, seq)

    def find(self, line: str, seq: int) -> BookedCall | None:
        """One call, as the service's replay asks for it."""
        found = self._dated("seq = ?", line, seq)
        return None if found is None else found.booked

    def calls(self, line: str, *, after: int = 0, at_most: int = 1) -> list[BookedCall]:
        """The next calls of a line, in order."""
        return [one.booked for one in islice(self.each(line, after), at_most)]

    def each(self, line: str, after: int = -1, at_once: int = 1) -> Iterator[DatedCall]:
        """The calls of a line in order, each read when it is its turn.

        ``at_once``: so many are read in one query, beside which no writer can shorten its log: for who reads quickly.
        """
        last: int | None = after
        while last is not None:
            sql = f"SELECT {DATED} FROM calls WHERE line = ? AND seq > ? ORDER BY seq LIMIT ?"
            values, last = (line, last, at_once), None
            for row in self._rows(sql, values):
                yield _dated(row)
                last = row[1]

    def heads(self, line: str) -> Iterator[CallHead]:
        """How the calls of a line begin, in order."""
        after = -1
        cut = f"substr(call, 1, {HEAD_BYTES}), substr(answer, 1, {HEAD_BYTES})"
        sql = f"SELECT seq, {cut} FROM calls WHERE line = ? AND seq > ? ORDER BY seq LIMIT ?"
        while rows := self._all(sql, (line, after, HEADS_AT_ONCE)):
            for row in rows:
                yield CallHead(seq=row[0], call=row[1], answer=row[2])
            after = rows[-1][0]

    def _dated(self, where: str, line: str, seq: int) -> DatedCall | None:
        row = self._one(f"SELECT {DATED} FROM calls WHERE line = ? AND {where}", (line, seq))
        return None if row is None else _dated(row)

    def _one(self, sql: str, values: tuple[str | int | bytes, ...] = ()) -> sqlite3.Row | None:
        return next(iter(self._all(sql, values)), None)

    def _all(self, sql: str, values: tuple[str | int | bytes, ...]) -> list[sqlite3.Row]:
        try:
            return self._file.tx.execute(sql, values).fetchall()
        except DATABASE_ERRORS as error:
            raise wrap(error, self.path) from error

    def _rows(self, sql: str, values: tuple[str | int, ...]) -> Iterator[sqlite3.Row]:
        """The rows one at a time."""
        try:
            yield from self._file.tx.execute(sql, values)
        except DATABASE_ERRORS as error:
            raise wrap(error, self.path) from error

    def _check(self) -> None:
        have = read_format(self._file.tx)
        check_format(str(self.path), have, FORMAT)
        if have < READ_FROM:
            raise LedgerError(
                f"the book {self.path} has format {have}, this version of rollout reads {READ_FROM} to {FORMAT}: start its"
                " service once with this version, or read it with the version that wrote it"
            )


def _dated(row: sqlite3.Row) -> DatedCall:
    booked = BookedCall(
        line=row[0], seq=row[1], digest=row[2], call=row[3], answer=row[4], chain=row[5]
    )
    return DatedCall(booked=booked, received_at=row[6], answered_at=row[7])
