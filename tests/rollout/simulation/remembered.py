"""What must hold of what environments keep: read with plain SQL, and compared with dictionaries."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from books import LIVE
from scenario import Scenario
from workers import fold_read, writes_of

Rows = list[tuple[int, int, int, str, str]]


def check_memory(file: Path, scenario: Scenario) -> list[str]:
    """All that is wrong with the memory of a run that goes on, or has ended, at any moment."""
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as tx:
        if not scenario.remembers:
            (num,) = tx.execute("SELECT count(*) FROM memory").fetchone()
            return [f"{num} rows of memory, and no environment keeps anything"] if num else []
        (pruned,) = tx.execute("SELECT memory_step FROM run").fetchone()
        return [*_writers_were_consumed(tx, pruned), *_read_what_was_there(tx, pruned)]


def _writers_were_consumed(tx: sqlite3.Connection, pruned: int) -> Iterator[str]:
    """Who has rows was consumed by that step; who was consumed by a later one than was pruned has rows."""
    wrote = set(
        tx.execute("SELECT DISTINCT lineage, step, 't/' || ordinal, sample FROM memory").fetchall()
    )
    consumed = set(
        tx.execute(
            "SELECT lineage, step, task_id, sample FROM dispositions WHERE kind = 'consumed'"
        ).fetchall()
    )
    yield from (f"{task}/{sample} wrote at {at}" for *at, task, sample in wrote - consumed)
    live = {
        (lineage, step, task, sample)
        for lineage, step, task, sample in tx.execute(
            f"{LIVE} SELECT lineage, step, task_id, sample FROM live WHERE kind = 'consumed'"
        )
        if step > pruned
    }
    yield from (f"{task}/{sample} of {at} wrote nothing" for *at, task, sample in live - wrote)


def _read_what_was_there(tx: sqlite3.Connection, pruned: int) -> Iterator[str]:
    """What each sample says that it read is what was there as of its version."""
    for lineage, step, ordinal, sample, value in tx.execute(
        "SELECT lineage, step, ordinal, sample, value FROM memory WHERE value <> 'null'"
    ).fetchall():
        at_lineage, at_step, folded = json.loads(value)
        if at_step < pruned:
            continue
        who: Any = SimpleNamespace(ordinal=ordinal, sample=sample)
        version: Any = SimpleNamespace(lineage=at_lineage, step=at_step)
        read = _as_of(tx, at_lineage, at_step)
        if fold_read(who, read) != folded:
            yield f"t/{ordinal}/{sample} of step {lineage}/{step} read something else at {at_step}"
        elif value not in {one.value for one in writes_of(who, version, read)}:
            yield f"t/{ordinal}/{sample} of step {lineage}/{step} wrote something else"


def _as_of(tx: sqlite3.Connection, lineage: int, step: int) -> dict[str, str]:
    kept: dict[str, str] = {}
    for *_, key, value in sorted(_rows(tx, lineage, step)):
        kept.pop(key, None)
        if value != "null":
            kept[key] = value
    return kept


def _rows(tx: sqlite3.Connection, lineage: int, step: int) -> Rows:
    found = tx.execute(
        "SELECT step, ordinal, sample, key, value FROM memory WHERE lineage = ? AND step <= ?",
        (lineage, step),
    ).fetchall()
    parent, base = tx.execute(
        "SELECT parent, base_step FROM lineages WHERE lineage = ?", (lineage,)
    ).fetchone()
    return found if parent is None else [*found, *_rows(tx, parent, min(step, base))]
