"""Writes a run's tables to files that other programs read: Parquet, or JSON lines. Whole files or none.

A file is written under another name and takes its own only when it is complete and on disk. Rows pass
through in groups of bounded size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from rollout.common.atomic_files import replacing
from rollout.errors import StoreError
from rollout.ledger.sql.reader import Reader
from rollout.report.gather import open_ledger
from rollout.report.tables import Table, What, open_table

Format = Literal["parquet", "jsonl"]
ROW_GROUP_ROWS = 4096
"""Rows held in memory, and in one row group of a Parquet file."""


def export_run(
    run_dir: Path, folder: Path, what: Sequence[What], form: Format
) -> dict[What, tuple[Path, int]]:
    """Write one file a table, ``<what>.<form>``, and return each with its number of rows.

    A file of that name is replaced. Raises LedgerError, DataError or StoreError; the file that was
    being written is then as it was before.
    """
    written: dict[What, tuple[Path, int]] = {}
    with open_ledger(run_dir) as ledger:
        for one in what:
            table = open_table(run_dir, ledger, one)
            path = folder / f"{one}.{form}"
            written[one] = (path, write_table(table, path, form, _provenance(ledger, one)))
    return written


def write_table(table: Table, path: Path, form: Format, provenance: Mapping[str, Any]) -> int:
    """Write one file, whole or not at all, and return its number of rows. Raises StoreError, and what reading raises."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _write(table, path, form, provenance)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}") from error


def _provenance(ledger: Reader, what: What) -> dict[str, Any]:
    run = ledger.run()
    return {
        "table": what,
        "run": run.identity.name,
        "uid": run.identity.uid,
        "spec_digest": run.identity.spec_digest,
        "step": run.step,
        "chain": run.chain,
    }


def _write(table: Table, path: Path, form: Format, provenance: Mapping[str, Any]) -> int:
    with replacing(path, durable=True) as file:
        return (_parquet if form == "parquet" else _jsonl)(table, file, provenance)


def _parquet(table: Table, file: BinaryIO, provenance: Mapping[str, Any]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = table.schema.with_metadata({"rollout": json.dumps(provenance)})
    total = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for rows in _regroup(table.batches):
            writer.write_table(pa.Table.from_pylist(rows, schema=schema), ROW_GROUP_ROWS)
            total += len(rows)
    return total


def _jsonl(table: Table, file: BinaryIO, _provenance: Mapping[str, Any]) -> int:
    names, total = table.schema.names, 0
    for rows in _regroup(table.batches):
        for row in rows:
            found = {name: _finite(row.get(name)) for name in names}
            file.write((json.dumps(found, ensure_ascii=False) + "\n").encode())
        total += len(rows)
    return total


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return [_finite(one) for one in value] if isinstance(value, list) else value


def _regroup(batches: Iterator[Sequence[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    """The same rows in groups of ROW_GROUP_ROWS."""
    held: list[dict[str, Any]] = []
    for batch in batches:
        held.extend(batch)
        while len(held) >= ROW_GROUP_ROWS:
            yield held[:ROW_GROUP_ROWS]
            held = held[ROW_GROUP_ROWS:]
    if held:
        yield held
