"""The file of a batch, line by line and within bounds: looked at whole before anything is asked, and read again as it is answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollout.inference.gateway.batches.lines import (
    LINE_BYTES_OVER_BODY,
    LINES_MAX,
    BatchLine,
    parse_line,
    row_of,
)
from rollout.inference.gateway.batches.objects import LineError

ERRORS_MAX = 100
"""Lines that are told to be bad."""
CHUNK_LINES, CHUNK_BYTES = 256, 8 << 20
ANSWER_BYTES_MAX = 128 << 20
"""Of one line of answers, escapes and all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What a file is: so many requests of one model, or no batch, and why."""

    total: int
    model: str | None
    errors: tuple[LineError, ...]


def scan(path: Path, endpoint: str, body_bytes_max: int) -> Scan:
    """Look at a whole file. Blocks. Raises OSError."""
    errors: list[LineError] = []
    first_of: dict[str, int] = {}
    model: str | None = None
    for line in parsed_lines(path, endpoint, body_bytes_max):
        found = line if isinstance(line, LineError) else _clash(line, first_of, model)
        if found is not None:
            errors.append(found)
        if not isinstance(line, LineError):
            first_of.setdefault(line.custom_id, line.row + 1)
            model = model or line.model
        if len(first_of) > LINES_MAX:
            errors = [_too_many()]
        if len(errors) >= ERRORS_MAX or len(first_of) > LINES_MAX:
            break
    if not errors and not first_of:
        errors = [LineError(code="empty_file", message="the file has no line")]
    return Scan(total=len(first_of), model=model, errors=tuple(errors))


def parsed_lines(path: Path, endpoint: str, body_bytes_max: int) -> Iterator[BatchLine | LineError]:
    """Every line that is not blank, of up to twice as many as there may be. Blocks."""
    most = body_bytes_max + LINE_BYTES_OVER_BODY
    with path.open("rb") as file:
        for row in range(2 * LINES_MAX):
            data = file.readline(most + 1)
            if not data:
                return
            if len(data) > most:
                while data and not data.endswith(b"\n"):
                    data = file.readline(CHUNK_BYTES)
                yield LineError(
                    code="line_too_long", message=f"expected up to {most} bytes", line=row + 1
                )
                continue
            data = data.removeprefix(b"\xef\xbb\xbf") if row == 0 else data
            if data.strip():
                yield parse_line(data.rstrip(b"\r\n"), row, endpoint)
        if file.read(1):
            yield _too_many()


def take_lines(lines: Iterator[BatchLine | LineError]) -> list[BatchLine]:
    """The next few of a file that was looked at; empty at its end. Blocks."""
    taken: list[BatchLine] = []
    size = 0
    for line in lines:
        if isinstance(line, BatchLine):
            taken.append(line)
            size += len(line.body)
        if len(taken) >= CHUNK_LINES or size >= CHUNK_BYTES:
            break
    return taken


def mend(path: Path) -> set[int]:
    """The rows that a file of answers has; what a crash cut off at its end is removed. Blocks."""
    rows: set[int] = set()
    good = 0
    if not path.exists():
        return rows
    with path.open("r+b") as file:
        while data := file.readline(ANSWER_BYTES_MAX):
            row = row_of(data)
            if row is None:
                break
            rows.add(row)
            good += len(data)
        file.truncate(good)
    return rows


def _too_many() -> LineError:
    return LineError(code="too_many_lines", message=f"expected up to {LINES_MAX} lines")


def _clash(line: BatchLine, first_of: dict[str, int], model: str | None) -> LineError | None:
    before = first_of.get(line.custom_id)
    if before is not None:
        return LineError(
            code="duplicate_custom_id",
            message=f"line {before} has this custom_id, too",
            line=line.row + 1,
            param="custom_id",
        )
    if model is not None and line.model != model:
        return LineError(
            code="mismatched_model",
            message="a batch asks one model: the lines before ask another",
            line=line.row + 1,
            param="body.model",
        )
    return None
