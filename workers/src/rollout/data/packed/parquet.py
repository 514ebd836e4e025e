"""Parquet as one more way to pack records: its rows as JSON lines, in their order, a batch at a time.

A row that is no JSON (bytes, a date is written as text, a number that is not finite) is a line that whoever reads lines refuses
by its number, so that one bad row costs no other. A file that is damaged is refused whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

from rollout.errors import DataError

BATCH_ROWS = 256
"""Rows in memory at once."""


def read_lines(path: Path) -> Iterator[bytes]:
    """A line for each row. Raises DataError for what is no Parquet file, or a damaged one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                for place in range(batch.num_rows):
                    yield _line(batch, place)
    except (pa.ArrowException, OSError) as error:
        said = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise DataError(
            f"data file {path} is no Parquet file that can be read: {said[0]:.200}"
        ) from error


def _line(batch: Any, place: int) -> bytes:
    try:
        record: Mapping[str, Any] = batch.slice(place, 1).to_pylist()[0]
        text = json.dumps(record, default=plain_value, allow_nan=False, ensure_ascii=False)
        return text.encode() + b"\n"
    except (TypeError, ValueError) as error:
        # UnicodeDecodeError and the encoder's own are ValueErrors: the row is refused, with what is wrong in it.
        return json.dumps(f"{type(error).__name__}: {error}"[:200]).encode() + b"\n"


def plain_value(value: Any) -> Any:
    """A date as JSON has it. Raises TypeError for what JSON has no form for."""
    if isinstance(value, date | datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} values are not supported; drop that column")
