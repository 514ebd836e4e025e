"""Parquet as one more way to pack records: its rows as JSON lines, in their order, a batch at a time.

A row that is no JSON (bytes, a date is written as text, a number that is not finite) is a line that whoever reads lines refuses
by its number, so that one bad row costs no other. A file that is damaged is refused whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rollout.data.packed.lines import as_line
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
                    row = batch.slice(place, 1)
                    yield as_line(lambda row=row: row.to_pylist()[0])
    except (pa.ArrowException, OSError) as error:
        said = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise DataError(
            f"data file {path} is no Parquet file that can be read: {said[0]:.200}"
        ) from error
