"""Steps, versions, lineages, anchors and evaluations as SQL, inside a transaction; ``now`` is given."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rollout.errors import LedgerError
from rollout.ledger.records import AnchorManifest, Disposition, StepCommit
from rollout.ledger.sqlite.tasks import admit, check_incarnation, insert_tasks
from rollout.types import WeightVersion

LEARNER = "learner"
"""The worker name under which learner incarnations are fenced: a run has one learner."""

INSERT_DISPOSITION = "INSERT INTO dispositions VALUES (?, ?, ?, ?, ?, ?, ?)"


def read_ancestry(tx: sqlite3.Connection) -> tuple[tuple[int, int | None], ...]:
    """(lineage, last step that still counts) from the live lineage, which has no bound, to the root."""
    lineage: int | None = tx.execute("SELECT lineage FROM run").fetchone()[0]
    chain: list[tuple[int, int | None]] = []
    bound: int | None = None
    while lineage is not None:
        chain.append((lineage, bound))
        parent, base = tx.execute(
            "SELECT parent, base_step FROM lineages WHERE lineage = ?", (lineage,)
        ).fetchone()
        # A fork below an earlier fork's base cuts the grandparent, too.
        bound = base if bound is None else min(base, bound)
        lineage = parent
    return tuple(chain)


def head_step(tx: sqlite3.Connection) -> int:
    """The last committed step of the live lineage, 0 before the first."""
    lineage, base = tx.execute(
        "SELECT l.lineage, l.base_step FROM run JOIN lineages l ON l.lineage = run.lineage"
    ).fetchone()
    row = tx.execute("SELECT max(step) FROM steps WHERE lineage = ?", (lineage,)).fetchone()
    return base if row[0] is None else row[0]


def publish_initial(
    tx: sqlite3.Connection, now: float, incarnation: int, version: WeightVersion, chain: str
) -> None:
    """Record version 0 of lineage 0."""
    check_incarnation(tx, LEARNER, incarnation)
    if (version.lineage, version.step) != (0, 0):
        raise LedgerError(f"the first version is (0, 0), not ({version.lineage}, {version.step})")
    row = tx.execute("SELECT digest FROM versions WHERE lineage = 0 AND step = 0").fetchone()
    if row is None:
        _insert_version(tx, now, version, chain)
    elif row[0] != version.digest:
        raise LedgerError(
            f"version 0 of this run is {row[0]}, the learner now has {version.digest}:"
            " the model changed under the run; start a new one"
        )


def _insert_version(tx: sqlite3.Connection, now: float, version: WeightVersion, chain: str) -> None:
    tx.execute(
        "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, 0)",
        (version.lineage, version.step, version.digest, version.object, chain, now),
    )


def commit(tx: sqlite3.Connection, now: float, step: StepCommit) -> None:
    """Commit one step, or find that it is committed already."""
    check_incarnation(tx, LEARNER, step.incarnation)
    live = tx.execute("SELECT lineage FROM run").fetchone()[0]
    if step.lineage != live or (step.version.lineage, step.version.step) != (live, step.step):
        raise LedgerError(f"step {step.step} of lineage {step.lineage}: lineage {live} is live")
    head = head_step(tx)
    if step.step <= head:
        _check_equal(tx, step)
        return
    if step.step != head + 1:
        raise LedgerError(f"step {step.step} cannot follow step {head}")
    insert_tasks(tx, now, step.rows, "done")
    _insert_dispositions(tx, step.lineage, step.step, step.dispositions)
    _check_consumed(tx, step)
    _insert_version(tx, now, step.version, step.chain)
    _insert_step(tx, now, step)
    admit(tx, now, step.admission)
    _ride_along(tx, step)


def _check_equal(tx: sqlite3.Connection, step: StepCommit) -> None:
    row = tx.execute(
        "SELECT digest, chain FROM versions WHERE lineage = ? AND step = ?",
        (step.lineage, step.step),
    ).fetchone()
    if row is None or (row[0], row[1]) != (step.version.digest, step.chain):
        committed = "nothing" if row is None else f"{row[0]}, chain {row[1]}"
        raise LedgerError(
            f"step {step.step} is committed as {committed}; this commit says"
            f" {step.version.digest}, chain {step.chain}: the learner diverged from its own past"
        )


def _insert_dispositions(
    tx: sqlite3.Connection, lineage: int, step: int, dispositions: Sequence[Disposition]
) -> None:
    tx.executemany(
        INSERT_DISPOSITION,
        [(lineage, d.task_id, d.sample, step, d.kind, d.reason, d.place) for d in dispositions],
    )
    tx.executemany(
        "UPDATE tasks SET state = ? WHERE task_id = ? AND state IN ('open', 'leased')",
        sorted({(d.kind, d.task_id) for d in dispositions if d.kind in {"surplus", "expired"}}),
    )


def _check_consumed(tx: sqlite3.Connection, step: StepCommit) -> None:
    """Every consumed sample exists, and no step of an ancestor has taken it."""
    highest: dict[str, int] = {}
    for one in step.dispositions:
        if one.kind == "consumed":
            highest[one.task_id] = max(one.sample, highest.get(one.task_id, 0))
    for task_id, sample in highest.items():
        row = tx.execute(
            "SELECT state, num_samples FROM tasks WHERE task_id = ?", (task_id,)
        ).fetchone()
        if row is None or row[0] != "done" or sample >= row[1]:
            raise LedgerError(f"step {step.step} consumes {task_id}/{sample}, never accepted")
    for lineage, bound in read_ancestry(tx)[1:]:
        taken = tx.execute(
            "SELECT d.task_id, d.sample FROM dispositions d JOIN dispositions o ON o.lineage = ?"
            " AND o.task_id = d.task_id AND o.sample = d.sample AND o.step <= ?"
            " WHERE d.lineage = ? AND d.step = ? LIMIT 1",
            (lineage, bound, step.lineage, step.step),
        ).fetchone()
        if taken is not None:
            raise LedgerError(f"{taken[0]}/{taken[1]} already ended in lineage {lineage}")


def _insert_step(tx: sqlite3.Connection, now: float, step: StepCommit) -> None:
    tx.execute(
        "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            step.lineage,
            step.step,
            msgspec.msgpack.encode(step.plan),
            step.cursor.next_ordinal,
            step.cursor.exhausted,
            msgspec.json.encode(step.metrics).decode(),
            json.dumps(step.phase_seconds),
            now,
        ),
    )


def _ride_along(tx: sqlite3.Connection, step: StepCommit) -> None:
    tx.executemany("UPDATE versions SET retired = 1 WHERE lineage = ? AND step = ?", step.retired)
    if step.tracked_step is not None:
        tx.execute("UPDATE run SET tracked_step = ?", (step.tracked_step,))


def fork(
    tx: sqlite3.Connection,
    now: float,
    incarnation: int,
    base_step: int,
    version: WeightVersion,
    chain: str,
    reason: str,
) -> int:
    """Open a lineage after ``base_step``; what the dead steps took is free to be taken again."""
    check_incarnation(tx, LEARNER, incarnation)
    parent = tx.execute("SELECT lineage FROM run").fetchone()[0]
    if not 0 <= base_step <= head_step(tx):
        raise LedgerError(f"cannot fork after step {base_step}: {head_step(tx)} steps exist")
    lineage = tx.execute("SELECT max(lineage) + 1 FROM lineages").fetchone()[0]
    tx.execute(
        "INSERT INTO lineages VALUES (?, ?, ?, ?, ?)", (lineage, parent, base_step, reason, now)
    )
    next_ordinal = _next_ordinal(tx, base_step)
    tx.execute(
        "UPDATE run SET lineage = ?, tracked_step = min(tracked_step, ?)", (lineage, base_step)
    )
    _insert_version(
        tx,
        now,
        WeightVersion(
            lineage=lineage, step=base_step, digest=version.digest, object=version.object
        ),
        chain,
    )
    _reopen(tx, next_ordinal)
    _drop_dead_evaluations(tx, now, parent, base_step)
    return lineage


def _next_ordinal(tx: sqlite3.Connection, step: int) -> int:
    for lineage, bound in read_ancestry(tx):
        if bound is None or step <= bound:
            row = tx.execute(
                "SELECT next_ordinal FROM steps WHERE lineage = ? AND step = ?", (lineage, step)
            ).fetchone()
            if row is not None:
                return row[0]
    return 0


def _reopen(tx: sqlite3.Connection, next_ordinal: int) -> None:
    tx.execute(
        "UPDATE tasks SET state = 'open', worker = NULL WHERE kind = 'train' AND ordinal >= ?"
        " AND state IN ('surplus', 'expired')",
        (next_ordinal,),
    )


def _drop_dead_evaluations(
    tx: sqlite3.Connection, now: float, lineage: int, base_step: int
) -> None:
    tx.execute(
        "UPDATE tasks SET state = 'surplus' WHERE kind = 'eval' AND lineage = ? AND step > ?"
        " AND state IN ('open', 'leased')",
        (lineage, base_step),
    )
    tx.execute(
        "UPDATE evaluations SET finished_at = ?, summary = '{\"dropped\": true}'"
        " WHERE lineage = ? AND step > ? AND summary IS NULL",
        (now, lineage, base_step),
    )


def dispose(
    tx: sqlite3.Connection, now: float, step: int, dispositions: Sequence[Disposition]
) -> None:
    """Give samples that no step will take their disposition."""
    lineage = tx.execute("SELECT lineage FROM run").fetchone()[0]
    _insert_dispositions(tx, lineage, step, dispositions)
    _note(tx, now, "disposed", f"{len(dispositions)} samples", {"step": step})


def save_anchor(
    tx: sqlite3.Connection, now: float, incarnation: int, manifest: AnchorManifest
) -> None:
    """Record an anchor, or the same one again."""
    check_incarnation(tx, LEARNER, incarnation)
    tx.execute(
        "INSERT OR REPLACE INTO anchors VALUES (?, ?, ?, ?, ?, 0)",
        (
            manifest.lineage,
            manifest.step,
            manifest.name,
            msgspec.json.encode(manifest).decode(),
            now,
        ),
    )


def delete_anchors(tx: sqlite3.Connection, anchors: Sequence[tuple[int, int]]) -> None:
    """Mark anchors as gone."""
    tx.executemany("UPDATE anchors SET deleted = 1 WHERE lineage = ? AND step = ?", anchors)


def finish_evaluation(
    tx: sqlite3.Connection, now: float, key: tuple[str, str, int, int], summary: Mapping[str, Any]
) -> None:
    """Record an evaluation's result once."""
    tx.execute(
        "UPDATE evaluations SET finished_at = ?, summary = ?"
        " WHERE name = ? AND split = ? AND lineage = ? AND step = ? AND summary IS NULL",
        (now, json.dumps(dict(summary)), *key),
    )


def set_outcome(tx: sqlite3.Connection, now: float, outcome: Mapping[str, str] | None) -> None:
    """Record the end, or that the run goes on after one: user code gets a fresh chance."""
    if outcome is None:
        tx.execute("UPDATE run SET outcome = NULL")
        tx.execute("UPDATE tasks SET data_failures = 0 WHERE state IN ('open', 'leased')")
        return
    tx.execute("UPDATE run SET outcome = ?", (json.dumps(dict(outcome)),))
    _note(tx, now, "outcome", outcome.get("message", ""), outcome)


def _note(
    tx: sqlite3.Connection, now: float, kind: str, message: str, data: Mapping[str, Any]
) -> None:
    tx.execute(
        "INSERT INTO events (at, kind, message, data) VALUES (?, ?, ?, ?)",
        (now, kind, message, json.dumps(dict(data))),
    )


add_event = _note
