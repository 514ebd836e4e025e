"""What a step was trained on, as rows: completions that a policy sampled, or rows of data.

The ledger keeps completions whole. Of an offline algorithm it keeps which rows were taken: they are read
again from the data, which must be what it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollout.debug.recording import Recording, open_recording
from rollout.errors import SpecError
from rollout.ledger.sql.reader import Sort
from rollout.report.gather import is_offline, open_ledger, sample_row

SHOWN = ("prompt", "answer", "chosen", "rejected", "label", "margin")
"""Fields of a row of data that an algorithm learns from, in reading order."""


def read_samples(
    run_dir: Path, step: int, *, sort: Sort = "place", limit: int | None = None
) -> list[dict[str, Any]]:
    """The samples of one committed step. Raises SpecError, LedgerError or DataError."""
    if is_offline(run_dir):
        return _rows_of(run_dir, step, sort, limit)
    with open_ledger(run_dir) as ledger:
        _require_step(ledger.run().step, step)
        return [sample_row(view) for view in ledger.samples(step, sort=sort, limit=limit)]


def _rows_of(run_dir: Path, step: int, sort: Sort, limit: int | None) -> list[dict[str, Any]]:
    if sort != "place":
        raise SpecError(
            f"--sort {sort}: this run trains on rows of data, which have no {sort} in the ledger; they "
            "are shown in the order of the batch"
        )
    with open_recording(run_dir) as recording:
        _require_step(recording.last_step, step)
        return list(data_rows(recording, step))[:limit]


def _require_step(last: int, step: int) -> None:
    if not 1 <= step <= last:
        raise SpecError(f"step {step}: this run has committed steps 1 to {last}")


def data_rows(recording: Recording, step: int) -> Iterator[dict[str, Any]]:
    """The rows of data that a committed step was given. Raises LedgerError or DataError."""
    batch = recording.batch(step)
    for place, (ids, found) in enumerate(zip(batch.ids, batch.rows, strict=True)):
        yield {
            "place": place,
            "task": ids[0],
            "ordinal": found.ordinal,
            **{name: found.row.get(name) for name in SHOWN},
            "row": json.dumps(plain_row(found.row), sort_keys=True, ensure_ascii=False),
        }


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of data as JSON can hold it; what it cannot hold is its text."""
    return dict(json.loads(json.dumps(dict(row), default=str)))
