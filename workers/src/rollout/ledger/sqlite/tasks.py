"""Tasks, leases and attempts as SQL. Functions of a connection inside a transaction; ``now`` is given."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from rollout.errors import Fenced
from rollout.ledger.records import (
    Admission,
    AttemptEnd,
    ClaimRequest,
    Claims,
    Freed,
    Lease,
    Limits,
    NewTask,
    Registration,
    TaskState,
    Verdict,
)

LEASE_COLUMNS = (
    "task_id, kind, ordinal, num_samples, evaluation, split, lineage, step, epoch, worker, incarnation,"
    " version_lineage, version_step, leased_at, expires_at, failures, losses, data_failures"
)


def read_task(row: sqlite3.Row) -> NewTask:
    """The task of a row that has the tasks' columns."""
    return NewTask(
        task_id=row["task_id"],
        kind=row["kind"],
        ordinal=row["ordinal"],
        num_samples=row["num_samples"],
        evaluation=row["evaluation"],
        split=row["split"],
        lineage=row["lineage"],
        step=row["step"],
    )


def read_lease(row: sqlite3.Row) -> Lease:
    """The lease of a row with ``LEASE_COLUMNS``."""
    return Lease(
        task=read_task(row),
        epoch=row["epoch"],
        attempt=1 + row["failures"] + row["losses"] + row["data_failures"],
        worker=row["worker"],
        incarnation=row["incarnation"],
        version_lineage=row["version_lineage"],
        version_step=row["version_step"],
        leased_at=row["leased_at"],
        expires_at=row["expires_at"],
    )


def check_incarnation(tx: sqlite3.Connection, worker: str, incarnation: int) -> None:
    """Raises Fenced when a newer process of this worker, or none, is registered."""
    row = tx.execute("SELECT incarnation FROM workers WHERE worker = ?", (worker,)).fetchone()
    have = 0 if row is None else row[0]
    if have != incarnation:
        raise Fenced(f"{worker} is now at incarnation {have}, this call came from {incarnation}")


def register(
    tx: sqlite3.Connection, now: float, limits: Limits, worker: str, role: str, pid: int, host: str
) -> Registration:
    """Start a new incarnation and take back what older ones held."""
    row = tx.execute("SELECT incarnation FROM workers WHERE worker = ?", (worker,)).fetchone()
    incarnation = 1 if row is None else row[0] + 1
    tx.execute(
        "INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?, ?, ?, NULL)",
        (worker, role, incarnation, pid, host, now),
    )
    held = tx.execute(
        "SELECT task_id, epoch FROM tasks WHERE state = 'leased' AND worker = ?", (worker,)
    ).fetchall()
    freed = lose(tx, now, limits, [(row[0], row[1]) for row in held], "lost")
    return Registration(incarnation=incarnation, freed=freed)


def lose(
    tx: sqlite3.Connection,
    now: float,
    limits: Limits,
    leases: Sequence[tuple[str, int]],
    ending: str,
) -> Freed:
    """End attempts whose worker vanished; too many of them exclude the task."""
    states: dict[str, list[str]] = {"open": [], "excluded": []}
    for task_id, epoch in leases:
        tx.execute(
            "UPDATE attempts SET ended_at = ?, ending = ? WHERE task_id = ? AND epoch = ?",
            (now, ending, task_id, epoch),
        )
        row = tx.execute(
            "UPDATE tasks SET losses = losses + 1, worker = NULL, state = CASE WHEN losses + 1 >= ?"
            " THEN 'excluded' ELSE 'open' END WHERE task_id = ? RETURNING state",
            (limits.losses_max, task_id),
        ).fetchone()
        states[row[0]].append(task_id)
    return Freed(opened=tuple(states["open"]), excluded=tuple(states["excluded"]))


def admit(tx: sqlite3.Connection, now: float, admission: Admission) -> None:
    """Let tasks and evaluations in; those already in stay as they are."""
    insert_tasks(tx, now, admission.tasks)
    for evaluation in admission.evaluations:
        key = (evaluation.name, evaluation.split, evaluation.lineage, evaluation.step)
        tx.execute(
            "INSERT OR IGNORE INTO evaluations VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)",
            (*key, len(evaluation.tasks), now),
        )
        insert_tasks(tx, now, evaluation.tasks)
    tx.execute(
        "UPDATE run SET next_admitted = max(next_admitted, ?), exhausted = max(exhausted, ?)",
        (admission.next_admitted, admission.exhausted),
    )


def insert_tasks(
    tx: sqlite3.Connection, now: float, tasks: Sequence[NewTask], state: TaskState = "open"
) -> None:
    """Insert tasks that are not there yet."""
    tx.executemany(
        "INSERT OR IGNORE INTO tasks (task_id, kind, ordinal, num_samples, evaluation, split, lineage,"
        " step, state, admitted_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                task.task_id,
                task.kind,
                task.ordinal,
                task.num_samples,
                task.evaluation,
                task.split,
                task.lineage,
                task.step,
                state,
                now,
            )
            for task in tasks
        ],
    )


def claim(tx: sqlite3.Connection, now: float, limits: Limits, ask: ClaimRequest) -> Claims:
    """Hand out again what an answer lost on its way held, then expired and open tasks."""
    check_incarnation(tx, ask.worker, ask.incarnation)
    again = _leases_not_held(tx, ask)
    _extend(tx, now + ask.lease_seconds, [lease.task.task_id for lease in again])
    freed = lose(tx, now, limits, _expired(tx, now), "expired")
    kinds = "('train', 'eval')" if ask.train else "('eval')"
    rows = tx.execute(
        f"SELECT {LEASE_COLUMNS} FROM tasks WHERE state = 'open' AND kind IN {kinds}"  # noqa: S608
        " AND state IN ('open', 'leased') ORDER BY kind, step, ordinal LIMIT ?",
        (max(0, ask.tasks_max - len(again)),),
    ).fetchall()
    fresh = tuple(_fresh_lease(row, now, ask) for row in rows)
    _write_leases(tx, fresh)
    return Claims(leases=(*again, *fresh), freed=freed)


def _fresh_lease(row: sqlite3.Row, now: float, ask: ClaimRequest) -> Lease:
    """The lease that an open task's row becomes."""
    task = read_task(row)
    pinned = task.kind == "eval"
    return Lease(
        task=task,
        epoch=row["epoch"] + 1,
        attempt=1 + row["failures"] + row["losses"] + row["data_failures"],
        worker=ask.worker,
        incarnation=ask.incarnation,
        version_lineage=task.lineage if pinned else ask.lineage,
        version_step=task.step if pinned else ask.step,
        leased_at=now,
        expires_at=now + ask.lease_seconds,
    )


def _write_leases(tx: sqlite3.Connection, leases: Sequence[Lease]) -> None:
    tx.executemany(
        "UPDATE tasks SET state = 'leased', epoch = ?, worker = ?, incarnation = ?,"
        " version_lineage = ?, version_step = ?, leased_at = ?, expires_at = ? WHERE task_id = ?",
        [
            (
                lease.epoch,
                lease.worker,
                lease.incarnation,
                lease.version_lineage,
                lease.version_step,
                lease.leased_at,
                lease.expires_at,
                lease.task.task_id,
            )
            for lease in leases
        ],
    )
    tx.executemany(
        "INSERT INTO attempts (task_id, epoch, worker, incarnation, version_lineage, version_step,"
        " started_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                lease.task.task_id,
                lease.epoch,
                lease.worker,
                lease.incarnation,
                lease.version_lineage,
                lease.version_step,
                lease.leased_at,
            )
            for lease in leases
        ],
    )


def _leases_not_held(tx: sqlite3.Connection, ask: ClaimRequest) -> list[Lease]:
    rows = tx.execute(
        f"SELECT {LEASE_COLUMNS} FROM tasks WHERE state = 'leased' AND worker = ? AND incarnation = ?"  # noqa: S608
        " ORDER BY kind, step, ordinal",
        (ask.worker, ask.incarnation),
    ).fetchall()
    held = set(ask.held)
    return [read_lease(row) for row in rows if row["task_id"] not in held][: ask.tasks_max]


def _expired(tx: sqlite3.Connection, now: float) -> list[tuple[str, int]]:
    rows = tx.execute(
        "SELECT task_id, epoch FROM tasks WHERE state = 'leased' AND expires_at <= ?", (now,)
    ).fetchall()
    return [(row[0], row[1]) for row in rows]


def _extend(tx: sqlite3.Connection, until: float, task_ids: Sequence[str]) -> None:
    tx.executemany(
        "UPDATE tasks SET expires_at = ? WHERE task_id = ?",
        [(until, task_id) for task_id in task_ids],
    )


def renew(
    tx: sqlite3.Connection,
    worker: str,
    incarnation: int,
    task_ids: Sequence[str],
    until: float,
) -> tuple[str, ...]:
    """Extend leases of this incarnation; the ids it no longer holds come back."""
    check_incarnation(tx, worker, incarnation)
    rows = tx.execute(
        "SELECT task_id FROM tasks WHERE state = 'leased' AND worker = ? AND incarnation = ?",
        (worker, incarnation),
    ).fetchall()
    mine = {row[0] for row in rows}
    _extend(tx, until, [task_id for task_id in task_ids if task_id in mine])
    return tuple(task_id for task_id in task_ids if task_id not in mine)


def submit(
    tx: sqlite3.Connection,
    now: float,
    limits: Limits,
    worker: str,
    incarnation: int,
    ends: Sequence[AttemptEnd],
) -> tuple[Verdict, ...]:
    """End attempts, each on its own merits."""
    check_incarnation(tx, worker, incarnation)
    found = _read_attempts(tx, ends)
    verdicts: list[Verdict] = []
    good: list[AttemptEnd] = []
    for end in ends:
        row = found.get((end.task_id, end.epoch))
        refusal = _refusal(row, end)
        if row is None or refusal is not None:
            verdicts.append(refusal or _refused("no such attempt", "surplus"))
        elif row["ending"] is not None:
            verdicts.append(_repeated(tx, row, end))
        elif end.failure is not None:
            verdicts.append(_fail(tx, now, limits, end))
        else:
            good.append(end)
            verdicts.append(Verdict(accepted=True, reason="", state="done"))
        # The same attempt twice in one call: the second is a repetition.
        found.pop((end.task_id, end.epoch), None)
    _accept(tx, now, good)
    return tuple(verdicts)


def _read_attempts(
    tx: sqlite3.Connection, ends: Sequence[AttemptEnd]
) -> dict[tuple[str, int], sqlite3.Row]:
    found: dict[tuple[str, int], sqlite3.Row] = {}
    for end in ends:
        row = tx.execute(
            "SELECT t.state, t.epoch, t.data_failures, t.num_samples, a.ending FROM attempts a JOIN"
            " tasks t ON t.task_id = a.task_id WHERE a.task_id = ? AND a.epoch = ?",
            (end.task_id, end.epoch),
        ).fetchone()
        if row is not None:
            found[(end.task_id, end.epoch)] = row
    return found


def _refused(reason: str, state: TaskState) -> Verdict:
    return Verdict(accepted=False, reason=reason, state=state)


def _refusal(row: sqlite3.Row | None, end: AttemptEnd) -> Verdict | None:
    """Why an end cannot be taken; None when it can, or repeats one that was."""
    if row is None:
        return _refused("no such attempt", "surplus")
    if row["ending"] is None and (row["state"] != "leased" or row["epoch"] != end.epoch):
        reason = f"epoch {end.epoch} is stale: the task is {row['state']} at epoch {row['epoch']}"
        return _refused(reason, row["state"])
    if end.failure is None and len(end.samples) != row["num_samples"]:
        reason = f"{end.task_id} wants {row['num_samples']} samples, got {len(end.samples)}"
        return _refused(reason, row["state"])
    return None


def _repeated(tx: sqlite3.Connection, row: sqlite3.Row, end: AttemptEnd) -> Verdict:
    """An attempt that has ended already: accepted again only when it ended in the same way."""
    same = row["ending"] == (end.failure or "accepted")
    if same and end.failure is None:
        stored = tx.execute(
            "SELECT trajectory_id FROM trajectories WHERE task_id = ? ORDER BY sample",
            (end.task_id,),
        ).fetchall()
        same = [item[0] for item in stored] == [item.trajectory_id for item in end.samples]
    reason = "" if same else f"the attempt already ended as {row['ending']}"
    return Verdict(
        accepted=same, reason=reason, state=row["state"], data_failures=row["data_failures"]
    )


def _accept(tx: sqlite3.Connection, now: float, ends: Sequence[AttemptEnd]) -> None:
    tx.executemany(
        "INSERT INTO trajectories VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (end.task_id, s.sample, s.trajectory_id, end.epoch, s.reward, s.num_tokens, s.ending)
            for end in ends
            for s in end.samples
        ],
    )
    tx.executemany("INSERT INTO bodies VALUES (?, ?)", [(end.task_id, end.body) for end in ends])
    tx.executemany(
        "UPDATE tasks SET state = 'done' WHERE task_id = ?", [(end.task_id,) for end in ends]
    )
    _close_attempts(tx, now, ends, "accepted")


def _fail(tx: sqlite3.Connection, now: float, limits: Limits, end: AttemptEnd) -> Verdict:
    assert end.failure is not None
    _close_attempts(tx, now, (end,), end.failure)
    row = tx.execute(
        "UPDATE tasks SET worker = NULL, failures = failures + ?, data_failures = data_failures + ?,"
        " state = CASE WHEN failures + ? >= ? THEN 'excluded' ELSE 'open' END"
        " WHERE task_id = ? RETURNING state, data_failures",
        (
            end.failure == "infrastructure",
            end.failure == "data",
            end.failure == "infrastructure",
            limits.failures_max,
            end.task_id,
        ),
    ).fetchone()
    return Verdict(accepted=True, reason="", state=row[0], data_failures=row[1])


def _close_attempts(
    tx: sqlite3.Connection, now: float, ends: Sequence[AttemptEnd], ending: str
) -> None:
    tx.executemany(
        "UPDATE attempts SET ended_at = ?, ending = ?, message = ? WHERE task_id = ? AND epoch = ?",
        [(now, ending, end.message, end.task_id, end.epoch) for end in ends],
    )


def rearm(tx: sqlite3.Connection, until: float) -> int:
    """Give every lease one full term."""
    return tx.execute("UPDATE tasks SET expires_at = ? WHERE state = 'leased'", (until,)).rowcount
