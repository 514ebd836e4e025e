"""JSON lines: one pass checks every line and remembers where the good ones start.

Memory is 8 bytes a row, whatever the files' size. Blank lines are no records.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from blake3 import blake3

from rollout.data.records import BadRecords, OnBadRecord
from rollout.data.rows.mapping import BadRecord, FieldMapping, map_record
from rollout.errors import DataError, DataNotFound
from rollout.types import Row

_SUSPECT = re.compile(rb"\\u[dD]|\d{19}|[eE]\+?\d{3}|\d{300}")
"""Where half a character, an integer of more than 64 bits or an infinite number may be."""
LINE_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Indexed:
    """One file: byte offsets of its good lines, and the digest of its bytes."""

    path: Path
    starts: array[int]
    digest: str


class JsonlSource:
    """Rows of one or more files, in the order of the files. ``bad`` tells what was left out."""

    def __init__(self, files: Sequence[_Indexed], mapping: FieldMapping, bad: BadRecords) -> None:
        self._files = files
        self._mapping = mapping
        self._firsts = [0]
        for file in files:
            self._firsts.append(self._firsts[-1] + len(file.starts))
        self.bad = bad

    def __len__(self) -> int:
        return self._firsts[-1]

    @property
    def digest(self) -> str:
        """blake3 over the content of all files; names and places do not count."""
        if len(self._files) == 1:
            return f"blake3:{self._files[0].digest}"
        return f"blake3:{blake3(''.join(f.digest for f in self._files).encode()).hexdigest()}"

    def rows(self, positions: Sequence[int]) -> Sequence[Row]:
        """The rows at these positions. Raises DataError when a file is not what it was."""
        return [self._read(position) for position in positions]

    def _read(self, position: int) -> Row:
        index = bisect_right(self._firsts, position) - 1
        file = self._files[index]
        try:
            with file.path.open("rb") as handle:
                handle.seek(file.starts[position - self._firsts[index]])
                return map_record(self._mapping, parse_line(handle.readline(LINE_BYTES_MAX)))
        except OSError as error:
            raise DataNotFound(
                f"{file.path}: cannot be read ({error.strerror or error})"
            ) from error
        except BadRecord as error:
            raise DataError(
                f"{file.path}: row {position} was good when the run began and is not now ({error}); "
                f"the file was changed"
            ) from error


def open_jsonl(
    paths: Sequence[Path], mapping: FieldMapping, *, on_bad: OnBadRecord = "Fail"
) -> JsonlSource:
    """Check every line of every file. Raises DataError naming file and line."""
    bad = BadRecords()
    files = [_index(path, mapping, bad) for path in paths]
    what = f"data file {paths[0]}" if len(paths) == 1 else f"data of {len(paths)} files"
    bad.settle(what, sum(len(file.starts) for file in files), on_bad)
    return JsonlSource(files, mapping, bad)


def _index(path: Path, mapping: FieldMapping, bad: BadRecords) -> _Indexed:
    starts, content = array("Q"), blake3()
    try:
        for number, start, line in number_lines(path):
            content.update(line)
            if not line.strip():
                continue
            try:
                map_record(mapping, parse_line(line))
                starts.append(start)
            except BadRecord as error:
                bad.add(f"{path}:{number}", str(error))
    except OSError as error:
        raise DataNotFound(
            f"data file {path} cannot be read ({error.strerror or error})"
        ) from error
    return _Indexed(path=path, starts=starts, digest=content.hexdigest())


def number_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """1-based line number, byte offset and bytes of each line."""
    with path.open("rb") as file:
        start, number = 0, 0
        while line := file.readline(LINE_BYTES_MAX):
            number += 1
            yield number, start, line
            start += len(line)


def parse_line(line: bytes) -> dict[str, Any]:
    """One line as an object. Raises BadRecord."""
    try:
        record = json.loads(line.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except BadRecord:
        raise
    except UnicodeDecodeError as error:
        raise BadRecord(f"not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise BadRecord(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise BadRecord("not JSON: nested too deeply") from error
    except ValueError as error:
        raise BadRecord(f"a number that is too long: {error!s:.80}") from error
    if _SUSPECT.search(line):
        _check_sayable(record)
    if not isinstance(record, dict):
        raise BadRecord(f"expected an object {{...}}, got {type(record).__name__}")
    return record


def _check_sayable(record: Any) -> None:
    """Raise BadRecord for what JSON holds and a message between processes does not."""
    try:
        msgspec.msgpack.encode(record)
        json.dumps(record, allow_nan=False)
    except (OverflowError, UnicodeEncodeError, ValueError, RecursionError) as error:
        raise BadRecord(f"a number or text out of range: {error!s:.80}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise BadRecord(f"not JSON: {name} is no JSON number")
