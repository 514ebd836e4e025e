"""Answers of one source that are kept, by the digest of what they are about: asked once, the same ever after.

A file in the run's folder, which the actors of one machine share and a resumed run finds again; in memory where there is
no folder. What was kept first stays, so that everybody who asks has one answer. Each entry carries the digest of its own
bytes: one that is damaged, or no answer at all, is dropped and asked again, and a file that is no cache is put aside.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from blake3 import blake3

from rollout.rewards.values import Valued

log = logging.getLogger(__name__)

WAIT_SECONDS = 10.0
"""How long another process of this machine may hold the file."""
ENTRY_BYTES_MAX = 1 << 20
LOOKED_UP = 256
"""Keys in one statement."""

Answer = list[Valued]
"""Of one unit that is asked about: a sample, or the samples of a group in order. Costs are not kept."""

_decoder = msgspec.msgpack.Decoder(Answer)
_T = TypeVar("_T")

_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    place INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE, mark BLOB NOT NULL, answer BLOB NOT NULL
)
"""


class RewardCache:
    """At most ``entries_max`` answers, the oldest first to go. Thread-safe; ``close`` when done.

    ``path`` None: in memory, for as long as this object lives. ``name``: of the value that every answer has.
    """

    def __init__(self, path: Path | None, entries_max: int, name: str) -> None:
        self._path, self._entries_max, self._name = path, entries_max, name
        self._lock = threading.Lock()
        self._file: sqlite3.Connection | None = None
        self.num_dropped = 0

    def get(self, keys: Mapping[bytes, int]) -> dict[bytes, Answer]:
        """What is known of these; each key with how many samples it is about."""
        with self._lock:
            found = self._tried(lambda file: _read(file, list(keys)), {})
            read = {key: _believed(key, *raw) for key, raw in found.items()}
            good = {key: one for key, one in read.items() if one and self._fits(one, keys[key])}
            if bad := [(key,) for key in found.keys() - good.keys()]:
                self.num_dropped += len(bad)
                log.warning("cache=%s damaged answers dropped=%d", self._path, len(bad))
                self._tried(
                    lambda file: _write(file, "DELETE FROM answers WHERE key = ?", bad), None
                )
        return good

    def put(self, answers: Mapping[bytes, Answer]) -> dict[bytes, Answer]:
        """Keep these. Returns what is kept under their keys: what another process kept before, where it did."""
        rows = [(key, _mark(key, raw), raw) for key, raw in map(_packed, answers.items())]
        small = [row for row in rows if len(row[2]) <= ENTRY_BYTES_MAX]
        insert = "INSERT OR IGNORE INTO answers (key, mark, answer) VALUES (?, ?, ?)"
        with self._lock:
            self._tried(lambda file: _write(file, insert, small), None)
            self._tried(self._trim, None)
        return {**answers, **self.get({key: len(one) for key, one in answers.items()})}

    def _fits(self, answer: Answer, num_samples: int) -> bool:
        return len(answer) == num_samples and all(self._name in one.values for one in answer)

    def close(self) -> None:
        """Let go of the file; idempotent."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    def __len__(self) -> int:
        with self._lock:
            count = "SELECT count(*) FROM answers"
            return self._tried(lambda file: int(file.execute(count).fetchone()[0]), 0)

    def _trim(self, file: sqlite3.Connection) -> None:
        (last,) = file.execute("SELECT max(place) FROM answers").fetchone()
        old = (last or 0) - self._entries_max
        _write(file, "DELETE FROM answers WHERE place <= ?", [(old,)])

    def _tried(self, work: Callable[[sqlite3.Connection], _T], otherwise: _T) -> _T:
        """The work's result; ``otherwise`` where the file cannot be used now. One that is broken is begun anew."""
        for _ in range(2):
            try:
                return work(self._opened())
            except sqlite3.OperationalError as error:
                log.warning("cache=%s is not used: %s", self._path, error)
                return otherwise
            except sqlite3.DatabaseError as error:
                log.warning("cache=%s is broken and begun anew: %s", self._path, error)
                self._put_aside()
        return otherwise

    def _opened(self) -> sqlite3.Connection:
        if self._file is None:
            self._file = _open(self._path)
        return self._file

    def _put_aside(self) -> None:
        self.num_dropped += 1
        if self._file is not None:
            with contextlib.suppress(sqlite3.Error):
                self._file.close()
        self._file = None
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                self._path.replace(self._path.with_suffix(".broken"))
            for more in ("-wal", "-shm"):
                self._path.with_name(self._path.name + more).unlink(missing_ok=True)


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    where = ":memory:" if path is None else path
    file = sqlite3.connect(
        where, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("PRAGMA synchronous = NORMAL")
    file.execute(_TABLE)
    return file


def _read(file: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, tuple[object, object]]:
    found: dict[bytes, tuple[object, object]] = {}
    for start in range(0, len(keys), LOOKED_UP):
        part = keys[start : start + LOOKED_UP]
        marks = ", ".join("?" * len(part))
        ask = f"SELECT key, mark, answer FROM answers WHERE key IN ({marks})"  # noqa: S608 - question marks only
        found.update((bytes(key), (mark, raw)) for key, mark, raw in file.execute(ask, part))
    return found


def _write(file: sqlite3.Connection, statement: str, rows: Sequence[Sequence[object]]) -> None:
    file.execute("BEGIN IMMEDIATE")
    try:
        file.executemany(statement, rows)
    except BaseException:
        file.execute("ROLLBACK")
        raise
    file.execute("COMMIT")


def _packed(item: tuple[bytes, Answer]) -> tuple[bytes, bytes]:
    key, answer = item
    return key, msgspec.msgpack.encode([Valued(values=one.values) for one in answer])


def _mark(key: bytes, raw: bytes) -> bytes:
    return blake3(key + raw).digest()


def _believed(key: bytes, mark: object, raw: object) -> Answer | None:
    """The answer in an entry; None for one that is not whole, or holds what no source may say."""
    if not isinstance(raw, bytes) or mark != _mark(key, raw):
        return None
    try:
        answer = _decoder.decode(raw)
    except msgspec.DecodeError:
        return None
    values = [value for one in answer for value in one.values.values()]
    return answer if all(map(math.isfinite, values)) else None
