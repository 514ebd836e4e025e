"""JSON lines: one pass checks every line and remembers where the good ones start.

Memory is 8 bytes a row, whatever the file's size. Blank lines are no records.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from rollout.data.mapping import BadRecord, FieldMapping, map_record
from rollout.data.records import BadRecords, OnBadRecord
from rollout.errors import DataError
from rollout.types import Row

LINE_BYTES_MAX = 64 * 1024 * 1024


class JsonlSource:
    """Rows of one file. ``bad`` tells what was left out."""

    def __init__(self, path: Path, mapping: FieldMapping, starts: array[int], digest: str) -> None:
        self._path = path
        self._mapping = mapping
        self._starts = starts
        self.digest = digest
        self.bad = BadRecords()

    def __len__(self) -> int:
        return len(self._starts)

    def rows(self, positions: Sequence[int]) -> Sequence[Row]:
        """The rows at these positions. Raises DataError when the file is not what it was."""
        try:
            with self._path.open("rb") as file:
                return [self._read(file, position) for position in positions]
        except OSError as error:
            raise DataError(f"{self._path}: cannot be read ({error.strerror or error})") from error

    def _read(self, file: BinaryIO, position: int) -> Row:
        file.seek(self._starts[position])
        try:
            return map_record(self._mapping, parse_line(file.readline(LINE_BYTES_MAX)))
        except BadRecord as error:
            raise DataError(
                f"{self._path}: row {position} was good when the file was opened and is not now "
                f"({error}); the file was changed during the run"
            ) from error


def open_jsonl(path: Path, mapping: FieldMapping, *, on_bad: OnBadRecord = "Fail") -> JsonlSource:
    """Check every line of a file. Raises DataError naming file and line."""
    if not path.is_file():
        kind = "is a folder; name a file" if path.is_dir() else "does not exist"
        raise DataError(f"data file {path} {kind} (relative paths start at the manifest's folder)")
    starts, bad, content = array("Q"), BadRecords(), blake3()
    try:
        for number, start, line in _lines(path):
            content.update(line)
            if not line.strip():
                continue
            try:
                map_record(mapping, parse_line(line))
                starts.append(start)
            except BadRecord as error:
                bad.add(f"{path}:{number}", str(error))
    except OSError as error:
        raise DataError(f"data file {path} cannot be read ({error.strerror or error})") from error
    bad.settle(f"data file {path}", len(starts), on_bad)
    source = JsonlSource(path, mapping, starts, f"blake3:{content.hexdigest()}")
    source.bad = bad
    return source


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
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
    except UnicodeDecodeError as error:
        raise BadRecord(f"not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise BadRecord(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise BadRecord("not JSON: nested too deeply") from error
    if not isinstance(record, dict):
        raise BadRecord(f"expected an object {{...}}, got {type(record).__name__}")
    return record


def _refuse_constant(name: str) -> float:
    raise BadRecord(f"not JSON: {name} is no JSON number")
