"""Steps, versions, lineages, anchors and evaluations as SQL, inside a transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from rollout.errors import LedgerError
from rollout.ledger.records import AnchorManifest, Disposition, StepCommit
from rollout.ledger.sql.chain import head_step, next_ordinal, read_ancestry
from rollout.ledger.sql.memory.rows import insert_rows
from rollout.ledger.sql.removing import check_fork
from rollout.ledger.sql.tallies import add_tallies
from rollout.ledger.sql.tasks import (
    admit,
    check_incarnation,
    give_up_attempts,
    insert_tasks,
    lock_run,
)
from rollout.ledger.sql.transaction import EVERYTHING, Transaction, marks, slices
from rollout.types import WeightVersion

LEARNER = "learner"
"""The worker name under which learner incarnations are fenced: a run has one learner."""

DISPOSITION_COLUMNS = "lineage, task_id, sample, step, kind, reason, place"


def publish_initial(tx: Transaction, incarnation: int, version: WeightVersion, chain: str) -> None:
    """Record version 0 of lineage 0."""
    lock_run(tx)
    check_incarnation(tx, LEARNER, incarnation)
    if (version.lineage, version.step) != (0, 0):
        raise LedgerError(f"the first version is (0, 0), not ({version.lineage}, {version.step})")
    row = tx.execute("SELECT digest FROM versions WHERE lineage = 0 AND step = 0").fetchone()
    if row is None:
        _insert_version(tx, version, chain)
    elif row[0] != version.digest:
        raise LedgerError(
            f"version 0 of this run is {row[0]}, the learner now has {version.digest}:"
            " the model changed under the run; start a new one"
        )


def _insert_version(tx: Transaction, version: WeightVersion, chain: str) -> None:
    """The column ``object`` holds the version's own object, then those that it builds on."""
    tx.execute(
        "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, 0)",
        (version.lineage, version.step, version.digest, " ".join(version.objects), chain, tx.now),
    )


def store_again(tx: Transaction, incarnation: int, version: WeightVersion) -> None:
    """Name other objects for the weights of a version that is there."""
    lock_run(tx)
    check_incarnation(tx, LEARNER, incarnation)
    row = tx.execute(
        "UPDATE versions SET object = ? WHERE lineage = ? AND step = ? AND digest = ? AND retired = 0"
        " RETURNING digest",
        (" ".join(version.objects), version.lineage, version.step, version.digest),
    ).fetchone()
    if row is None:
        raise LedgerError(
            f"version {version.lineage}/{version.step} with weights {version.digest} is not in the"
            " ledger: what was stored again is not what was committed"
        )


def commit(tx: Transaction, step: StepCommit) -> None:
    """Commit one step, or find that it is committed already."""
    live = lock_run(tx)
    check_incarnation(tx, LEARNER, step.incarnation)
    if step.lineage != live or (step.version.lineage, step.version.step) != (live, step.step):
        raise LedgerError(f"step {step.step} of lineage {step.lineage}: lineage {live} is live")
    head = head_step(tx)
    if step.step <= head:
        _check_equal(tx, step)
        return
    if step.step != head + 1:
        raise LedgerError(f"step {step.step} cannot follow step {head}")
    insert_tasks(tx, step.rows, "done")
    _insert_dispositions(tx, step.lineage, step.step, step.dispositions)
    _check_consumed(tx, step)
    _insert_version(tx, step.version, step.chain)
    _insert_step(tx, step)
    insert_rows(tx, step.lineage, step.memory)
    admit(tx, step.admission)
    _ride_along(tx, step)


def _check_equal(tx: Transaction, step: StepCommit) -> None:
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
    tx: Transaction, lineage: int, step: int, dispositions: Sequence[Disposition]
) -> None:
    rows = [(lineage, d.task_id, d.sample, step, d.kind, d.reason, d.place) for d in dispositions]
    tx.insert("dispositions", DISPOSITION_COLUMNS, rows)
    add_tallies(tx, lineage, step, dispositions)
    for kind in ("expired", "surplus"):
        closed = sorted({d.task_id for d in dispositions if d.kind == kind})
        for some in slices(closed):
            tx.execute(
                "UPDATE tasks SET state = ? WHERE state IN ('open', 'leased')"
                f" AND task_id IN ({marks(some)})",
                (kind, *some),
            )
        give_up_attempts(tx, closed)


def _check_consumed(tx: Transaction, step: StepCommit) -> None:
    """Every consumed sample exists, and no step of an ancestor has taken it."""
    wanted = {(d.task_id, d.sample) for d in step.dispositions if d.kind == "consumed"}
    missing = sorted(wanted - _made(tx, sorted({task_id for task_id, _ in wanted})))
    if missing:
        task_id, sample = missing[0]
        raise LedgerError(f"step {step.step} consumes {task_id}/{sample}, never accepted")
    for lineage, bound in read_ancestry(tx)[1:]:
        taken = tx.execute(
            "SELECT d.task_id, d.sample FROM dispositions d JOIN dispositions o ON o.lineage = ?"
            " AND o.task_id = d.task_id AND o.sample = d.sample AND o.step <= ?"
            " WHERE d.lineage = ? AND d.step = ? LIMIT 1",
            (lineage, EVERYTHING if bound is None else bound, step.lineage, step.step),
        ).fetchone()
        if taken is not None:
            raise LedgerError(f"{taken[0]}/{taken[1]} already ended in lineage {lineage}")


def _made(tx: Transaction, task_ids: Sequence[str]) -> set[tuple[str, int]]:
    """The samples that these tasks have: trajectories, or the one of a row."""
    found: set[tuple[str, int]] = set()
    for some in slices(task_ids):
        rows = tx.execute(
            "SELECT j.task_id, j.sample FROM trajectories j JOIN tasks t ON t.task_id = j.task_id"
            f" WHERE t.state = 'done' AND j.task_id IN ({marks(some)}) UNION ALL SELECT task_id, 0"
            f" FROM tasks WHERE kind = 'row' AND state = 'done' AND task_id IN ({marks(some)})",
            (*some, *some),
        )
        found.update((row[0], row[1]) for row in rows)
    return found


def _insert_step(tx: Transaction, step: StepCommit) -> None:
    tx.execute(
        "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            step.lineage,
            step.step,
            msgspec.msgpack.encode(step.plan),
            step.cursor.next_ordinal,
            int(step.cursor.exhausted),
            msgspec.json.encode(step.metrics).decode(),
            json.dumps(step.phase_seconds),
            tx.now,
        ),
    )


def _ride_along(tx: Transaction, step: StepCommit) -> None:
    for key in step.retired:
        tx.execute("UPDATE versions SET retired = 1 WHERE lineage = ? AND step = ?", key)
    if step.tracked_step is not None:
        tx.execute("UPDATE run SET tracked_step = ?", (step.tracked_step,))


def fork(
    tx: Transaction,
    incarnation: int,
    base_step: int,
    version: WeightVersion,
    chain: str,
    reason: str,
) -> int:
    """Open a lineage after ``base_step``; what the dead steps took is free to be taken again."""
    parent = lock_run(tx)
    check_incarnation(tx, LEARNER, incarnation)
    if not 0 <= base_step <= head_step(tx):
        raise LedgerError(f"cannot fork after step {base_step}: {head_step(tx)} steps exist")
    check_fork(tx, base_step)
    reopened = next_ordinal(tx, base_step)
    lineage = open_lineage(tx, parent, replace(version, step=base_step), chain, reason)
    _reopen(tx, reopened)
    drop_dead_evaluations(tx, parent, base_step)
    return lineage


def open_lineage(
    tx: Transaction, parent: int, version: WeightVersion, chain: str, reason: str
) -> int:
    """The lineage that counts from now on: it leaves ``parent`` after the step of ``version``, which is its first."""
    lineage = tx.execute("SELECT max(lineage) + 1 FROM lineages").fetchone()[0]
    tx.execute(
        "INSERT INTO lineages VALUES (?, ?, ?, ?, ?)",
        (lineage, parent, version.step, reason, tx.now),
    )
    tx.execute(
        "UPDATE run SET lineage = ?, tracked_step = CASE WHEN tracked_step > ? THEN ?"
        " ELSE tracked_step END",
        (lineage, version.step, version.step),
    )
    _insert_version(tx, replace(version, lineage=lineage), chain)
    return lineage


def _reopen(tx: Transaction, next_ordinal: int) -> None:
    rows = tx.execute(
        "UPDATE tasks SET state = 'open', worker = NULL WHERE kind = 'train' AND kind <> 'eval'"
        " AND ordinal >= ? AND state IN ('surplus', 'expired') RETURNING task_id",
        (next_ordinal,),
    ).fetchall()
    # Ledgers of older versions leave attempts under way when they close a task.
    give_up_attempts(tx, [row[0] for row in rows])


def drop_dead_evaluations(tx: Transaction, lineage: int, base_step: int) -> None:
    """Close what is under way of a lineage's evaluations after a step."""
    tx.execute(
        "UPDATE tasks SET state = 'surplus' WHERE kind = 'eval' AND lineage = ? AND step > ?"
        " AND state IN ('open', 'leased')",
        (lineage, base_step),
    )
    tx.execute(
        "UPDATE evaluations SET finished_at = ?, summary = '{\"dropped\": true}'"
        " WHERE lineage = ? AND step > ? AND summary IS NULL",
        (tx.now, lineage, base_step),
    )


def dispose(tx: Transaction, step: int, dispositions: Sequence[Disposition]) -> None:
    """Give samples that no step will take their disposition."""
    lineage = lock_run(tx)
    _insert_dispositions(tx, lineage, step, dispositions)
    add_event(tx, "disposed", f"{len(dispositions)} samples", {"step": step})


def save_anchor(tx: Transaction, incarnation: int, manifest: AnchorManifest) -> None:
    """Record an anchor, or the same one again."""
    check_incarnation(tx, LEARNER, incarnation)
    insert_anchor(tx, manifest)


def insert_anchor(tx: Transaction, manifest: AnchorManifest) -> None:
    """Write down an anchor; one that was deleted is there again."""
    tx.execute(
        "INSERT INTO anchors VALUES (?, ?, ?, ?, ?, 0) ON CONFLICT (lineage, step) DO UPDATE SET"
        " name = excluded.name, manifest = excluded.manifest, saved_at = excluded.saved_at, deleted = 0",
        (
            manifest.lineage,
            manifest.step,
            manifest.name,
            msgspec.json.encode(manifest).decode(),
            tx.now,
        ),
    )


def delete_anchors(tx: Transaction, anchors: Sequence[tuple[int, int]]) -> None:
    """Mark anchors as gone."""
    for key in anchors:
        tx.execute("UPDATE anchors SET deleted = 1 WHERE lineage = ? AND step = ?", key)


def finish_evaluation(
    tx: Transaction, key: tuple[str, str, int, int], summary: Mapping[str, Any]
) -> None:
    """Record an evaluation's result once."""
    tx.execute(
        "UPDATE evaluations SET finished_at = ?, summary = ?"
        " WHERE name = ? AND split = ? AND lineage = ? AND step = ? AND summary IS NULL",
        (tx.now, json.dumps(dict(summary)), *key),
    )


def set_outcome(tx: Transaction, outcome: Mapping[str, str] | None) -> None:
    """Record the end, or that the run goes on after one: user code gets a fresh chance."""
    lock_run(tx)
    if outcome is None:
        tx.execute("UPDATE run SET outcome = NULL")
        tx.execute("UPDATE tasks SET data_failures = 0 WHERE state IN ('open', 'leased')")
        return
    tx.execute("UPDATE run SET outcome = ?", (json.dumps(dict(outcome)),))
    add_event(tx, "outcome", outcome.get("message", ""), outcome)


def add_event(tx: Transaction, kind: str, message: str, data: Mapping[str, Any]) -> None:
    """Add to the run's log of notable events."""
    tx.execute(
        "INSERT INTO events (at, kind, message, data) VALUES (?, ?, ?, ?)",
        (tx.now, kind, message, json.dumps(dict(data))),
    )


def set_tracked(tx: Transaction, step: int) -> None:
    """Remember the last step that every tracker has."""
    tx.execute("UPDATE run SET tracked_step = ?", (step,))


def set_settings(tx: Transaction, settings: Mapping[str, Any]) -> None:
    """Replace the live settings."""
    tx.execute("UPDATE run SET settings = ?", (json.dumps(dict(settings)),))


def worker_ended(tx: Transaction, worker: str, incarnation: int, outcome: str) -> None:
    """Record how a worker ended. Raises Fenced when it was replaced, or never registered."""
    check_incarnation(tx, worker, incarnation)
    tx.execute("UPDATE workers SET outcome = ? WHERE worker = ?", (outcome, worker))
