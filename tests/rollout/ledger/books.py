"""What must hold in a run's SQLite ledger, whatever happened: read with plain SQL, by nobody's own account."""

from __future__ import annotations

import sqlite3
from pathlib import Path

LIVE = """
WITH RECURSIVE ancestry(lineage, bound) AS (
  SELECT lineage, 1 << 62 FROM run
  UNION ALL
  SELECT l.parent, min(l.base_step, a.bound) FROM ancestry a JOIN lineages l ON l.lineage = a.lineage
  WHERE l.parent IS NOT NULL
),
live AS (
  SELECT d.* FROM dispositions d JOIN ancestry a ON a.lineage = d.lineage AND d.step <= a.bound
)
"""


def check_books(file: Path, staleness_max: int) -> list[str]:
    """Everything that is wrong with the books of a run that goes on, or has ended, at any moment."""
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as tx:
        return [
            *ended_once(tx),
            *consumed_is_stored(tx),
            *bodies_are_kept(tx),
            *fenced(tx),
            *young_enough(tx, staleness_max),
            *tallied(tx),
        ]


def check_closed_books(file: Path, staleness_max: int) -> list[str]:
    """As ``check_books``, of a run that ended well: nothing that was admitted is without an end."""
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as tx:
        return [*check_books(file, staleness_max), *open_ends(tx)]


def ended_once(tx: sqlite3.Connection) -> list[str]:
    twice = tx.execute(
        f"{LIVE} SELECT task_id, sample, group_concat(kind) FROM live GROUP BY task_id, sample"
        " HAVING count(*) > 1"
    ).fetchall()
    unknown = tx.execute(
        f"{LIVE} SELECT d.task_id, d.sample FROM live d LEFT JOIN tasks t ON t.task_id = d.task_id"
        " WHERE t.task_id IS NULL OR d.sample >= t.num_samples"
    ).fetchall()
    return [
        *(f"{task}/{sample} ended more than once: {kinds}" for task, sample, kinds in twice),
        *(f"{task}/{sample} ended and was never admitted" for task, sample in unknown),
    ]


def tallied(tx: sqlite3.Connection) -> list[str]:
    """The running totals are what a count of all dispositions gives, at every step of every lineage."""
    counted = tx.execute(
        "SELECT lineage, kind, step, count(*), sum(count(*)) OVER (PARTITION BY lineage, kind ORDER BY"
        " step) FROM dispositions GROUP BY lineage, kind, step ORDER BY lineage, kind, step"
    ).fetchall()
    kept = tx.execute(
        "SELECT lineage, kind, step, num, total FROM tallies ORDER BY lineage, kind, step"
    ).fetchall()
    wrong = sorted(set(counted) ^ set(kept))
    return [f"tallies differ from what ended: {row}" for row in wrong]


def consumed_is_stored(tx: sqlite3.Connection) -> list[str]:
    rows = tx.execute(
        f"{LIVE} SELECT d.task_id, d.sample FROM live d LEFT JOIN trajectories j"
        " ON j.task_id = d.task_id AND j.sample = d.sample"
        " WHERE d.kind = 'consumed' AND j.task_id IS NULL"
    )
    return [f"{task}/{sample} was consumed and has no trajectory" for task, sample in rows]


def bodies_are_kept(tx: sqlite3.Connection) -> list[str]:
    """Results have a body unless it is written down as removed, and none that is written down is left."""
    rows = tx.execute(
        "SELECT t.task_id, b.task_id IS NOT NULL, t.ordinal < run.removed_ordinal FROM run, tasks t"
        " LEFT JOIN bodies b ON b.task_id = t.task_id WHERE t.kind = 'train' AND t.state = 'done'"
        " AND (b.task_id IS NULL) <> (t.ordinal < run.removed_ordinal)"
    )
    return [f"{task}: has a body: {has}, is removed: {removed}" for task, has, removed in rows]


def fenced(tx: sqlite3.Connection) -> list[str]:
    """A trajectory is of its task's last lease, which nobody had taken over."""
    stale = tx.execute(
        "SELECT DISTINCT j.task_id, j.epoch, t.epoch FROM trajectories j JOIN tasks t"
        " ON t.task_id = j.task_id WHERE j.epoch <> t.epoch"
    ).fetchall()
    late = tx.execute(
        "SELECT a.task_id, a.epoch FROM attempts a JOIN attempts b ON b.task_id = a.task_id"
        " AND b.epoch = a.epoch + 1 WHERE a.ending = 'accepted'"
    ).fetchall()
    several = tx.execute(
        "SELECT task_id, count(*) FROM attempts WHERE ending = 'accepted' GROUP BY task_id"
        " HAVING count(*) > 1"
    ).fetchall()
    return [
        *(f"{task}: epoch {old} was accepted, the task is at {new}" for task, old, new in stale),
        *(f"{task}: epoch {epoch} was accepted after it was taken over" for task, epoch in late),
        *(f"{task}: {count} attempts were accepted" for task, count in several),
    ]


def young_enough(tx: sqlite3.Connection, bound: int) -> list[str]:
    rows = tx.execute(
        f"{LIVE} SELECT d.task_id, d.step, a.version_step FROM live d JOIN tasks t"
        " ON t.task_id = d.task_id JOIN attempts a ON a.task_id = t.task_id AND a.ending = 'accepted'"
        " WHERE d.kind = 'consumed' AND t.kind = 'train' AND d.step - 1 - a.version_step > ?",
        (bound,),
    )
    return [f"{task}: consumed by step {step}, sampled from {made}" for task, step, made in rows]


def open_ends(tx: sqlite3.Connection) -> list[str]:
    rows = tx.execute(
        f"{LIVE} SELECT t.task_id, t.num_samples, count(d.sample) FROM tasks t LEFT JOIN live d"
        " ON d.task_id = t.task_id WHERE t.kind = 'train' GROUP BY t.task_id"
        " HAVING count(d.sample) <> t.num_samples"
    )
    return [f"{task}: {ended} of {total} samples ended" for task, total, ended in rows]
