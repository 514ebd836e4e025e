"""Tasks, leases and attempts as SQL, inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence

from rollout.errors import Fenced
from rollout.ledger.records import (
    Admission,
    ClaimRequest,
    Claims,
    Freed,
    Lease,
    Limits,
    NewTask,
    Registration,
    TaskState,
)
from rollout.ledger.sql.transaction import Result, Row, Transaction, marks, slices

LEASE_COLUMNS = (
    "task_id, kind, ordinal, num_samples, evaluation, split, lineage, step, epoch, worker, incarnation,"
    " version_lineage, version_step, leased_at, expires_at, failures, losses, data_failures,"
    " prefixed"
)
TASK_COLUMNS = (
    "task_id, kind, ordinal, num_samples, evaluation, split, lineage, step, state, admitted_at"
)
LEASED = "state = 'leased' AND state IN ('open', 'leased')"
"""In the words of SQLite's partial index, which is found by them."""
BY_TASK = "task_id || ''"
"""The order of locks, in words that let SQLite find the few leased tasks first and sort them."""
ATTEMPT_COLUMNS = "task_id, epoch, worker, incarnation, version_lineage, version_step, started_at"


def read_task(row: Row) -> NewTask:
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


def read_lease(row: Row) -> Lease:
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
        failures=row["failures"],
        prefixed=bool(row["prefixed"]),
    )


def lock_run(tx: Transaction) -> int:
    """Take turns with everybody who changes the run's structure; returns the live lineage."""
    return tx.execute(f"SELECT lineage FROM run{tx.for_update}").fetchone()[0]


def require_holder(worker: str, have: int | None, incarnation: int) -> None:
    """Raises Fenced when a newer process of this worker, or none, is registered."""
    if have != incarnation:
        raise Fenced(
            f"{worker} is now at incarnation {have or 0}, this call came from {incarnation}"
        )


def check_incarnation(tx: Transaction, worker: str, incarnation: int) -> None:
    """Raises Fenced when a newer process of this worker, or none, is registered."""
    row = tx.execute(
        f"SELECT incarnation FROM workers WHERE worker = ?{tx.for_share}", (worker,)
    ).fetchone()
    require_holder(worker, None if row is None else row[0], incarnation)


def register(
    tx: Transaction, limits: Limits, worker: str, role: str, pid: int, host: str
) -> Registration:
    """Start a new incarnation and take back what older ones held."""
    incarnation = tx.execute(
        "INSERT INTO workers VALUES (?, ?, 1, ?, ?, ?, NULL) ON CONFLICT (worker) DO UPDATE SET"
        " role = excluded.role, incarnation = workers.incarnation + 1, pid = excluded.pid,"
        " host = excluded.host, registered_at = excluded.registered_at, outcome = NULL"
        " RETURNING incarnation",
        (worker, role, pid, host, tx.now),
    ).fetchone()[0]
    held = tx.execute(
        f"SELECT task_id, epoch FROM tasks WHERE {LEASED} AND worker = ?"
        f" ORDER BY {BY_TASK}{tx.for_update}",
        (worker,),
    ).fetchall()
    freed = lose(tx, limits, [(row[0], row[1]) for row in held], "lost")
    return Registration(incarnation=incarnation, freed=freed)


def lose(tx: Transaction, limits: Limits, leases: Sequence[tuple[str, int]], ending: str) -> Freed:
    """End attempts whose worker vanished; too many of them exclude the task."""
    states: dict[str, list[str]] = {"open": [], "excluded": []}
    for task_id, epoch in leases:
        tx.execute(
            "UPDATE attempts SET ended_at = ?, ending = ? WHERE task_id = ? AND epoch = ?",
            (tx.now, ending, task_id, epoch),
        )
        row = tx.execute(
            "UPDATE tasks SET losses = losses + 1, worker = NULL, state = CASE WHEN losses + 1 >= ?"
            " THEN 'excluded' ELSE 'open' END WHERE task_id = ? RETURNING state",
            (limits.losses_max, task_id),
        ).fetchone()
        states[row[0]].append(task_id)
    return Freed(opened=tuple(states["open"]), excluded=tuple(states["excluded"]))


def admit(tx: Transaction, admission: Admission) -> None:
    """Let tasks and evaluations in; those already in stay as they are."""
    lock_run(tx)
    insert_tasks(tx, admission.tasks)
    for evaluation in admission.evaluations:
        key = (evaluation.name, evaluation.split, evaluation.lineage, evaluation.step)
        tx.execute(
            "INSERT INTO evaluations (name, split, lineage, step, num_tasks, scheduled_at)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (*key, len(evaluation.tasks), tx.now),
        )
        insert_tasks(tx, evaluation.tasks)
    tx.execute(
        "UPDATE run SET next_admitted = CASE WHEN next_admitted < ? THEN ? ELSE next_admitted END,"
        " exhausted = CASE WHEN exhausted < ? THEN 1 ELSE exhausted END",
        (admission.next_admitted, admission.next_admitted, int(admission.exhausted)),
    )


def insert_tasks(tx: Transaction, tasks: Sequence[NewTask], state: TaskState = "open") -> None:
    """Insert tasks that are not there yet."""
    rows = [
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
            tx.now,
        )
        for task in tasks
    ]
    tx.insert("tasks", TASK_COLUMNS, rows, ignore=True)


def claim_beside(
    tx: Transaction, limits: Limits, asks: Sequence[ClaimRequest]
) -> tuple[Claims | None, ...]:
    """Several claims in a transaction that has written already; None for a worker that was replaced.

    It holds rows of tasks, so it waits for no worker's: one that registers just now would wait for those.
    """
    found: list[Claims | None] = []
    for ask in asks:
        try:
            found.append(claim(tx, limits, ask, waits=False))
        except Fenced:
            found.append(None)
    return tuple(found)


def claim(tx: Transaction, limits: Limits, ask: ClaimRequest, *, waits: bool = True) -> Claims:
    """Hand out again what an answer lost on its way held, then expired and open tasks.

    Raises Fenced; with ``waits`` False also where the worker's row is in another transaction's hands.
    """
    now, leased, some = _look(tx, ask, tx.for_share if waits else tx.for_share_now)
    leases = [read_lease(row) for row in leased]
    again = _not_held(leases, ask)
    extend(tx, now + ask.lease_seconds, [lease.task.task_id for lease in again])
    repeated = {lease.task.task_id for lease in again}
    gone = [
        (lease.task.task_id, lease.epoch)
        for lease in leases
        if lease.expires_at <= now and lease.task.task_id not in repeated
    ]
    freed = lose(tx, limits, gone, "expired")
    if again or gone:
        some = _ask_open(tx, ask, max(0, ask.tasks_max - len(again))).fetchall()
    fresh = tuple(_fresh_lease(row, now, ask) for row in some)
    _write_leases(tx, fresh, ask, now)
    return Claims(leases=(*again, *fresh), freed=freed)


def _look(tx: Transaction, ask: ClaimRequest, hold: str) -> tuple[float, list[Row], list[Row]]:
    """The time, leases of this worker and expired ones of anybody, open tasks: one question.

    The fence's row is kept before any task's, as everywhere. Raises Fenced.
    """
    moment, values = tx.moment
    rows = tx.execute(
        f"WITH fence AS (SELECT incarnation FROM workers WHERE worker = ?{hold}),"
        f" leased AS (SELECT {LEASE_COLUMNS} FROM tasks WHERE {LEASED}"
        f" AND (worker = ? OR expires_at <= {moment}) AND (SELECT incarnation FROM fence) = ?"
        f"{tx.skip_locked}),"
        f" fresh AS (SELECT {LEASE_COLUMNS} FROM tasks WHERE {_open(ask)}"
        " AND (SELECT incarnation FROM fence) = ?"
        f" ORDER BY kind, step, ordinal LIMIT ?{tx.skip_locked})"
        f" SELECT (SELECT incarnation FROM fence) AS holder, {moment} AS now, found.*"
        " FROM (SELECT 1) AS one LEFT JOIN (SELECT 0 AS is_fresh, leased.* FROM leased"
        " UNION ALL SELECT 1 AS is_fresh, fresh.* FROM fresh) AS found ON 1 = 1",
        (
            *(ask.worker, ask.worker, *values, ask.incarnation),
            *(ask.ordinal_end, ask.incarnation, ask.tasks_max, *values),
        ),
    ).fetchall()
    require_holder(ask.worker, rows[0]["holder"], ask.incarnation)
    fresh = [row for row in rows if row["is_fresh"] == 1]
    fresh.sort(key=lambda row: (row["kind"], row["step"], row["ordinal"]))
    leased = [row for row in rows if row["is_fresh"] == 0]
    leased.sort(key=lambda row: row["task_id"])
    return rows[0]["now"], leased, fresh


def _not_held(leases: Sequence[Lease], ask: ClaimRequest) -> list[Lease]:
    """What an answer that got lost handed to this process."""
    held = set(ask.held)
    lost = [
        lease
        for lease in leases
        if (lease.worker, lease.incarnation) == (ask.worker, ask.incarnation)
        and lease.task.task_id not in held
    ]
    lost.sort(key=lambda lease: (lease.task.kind, lease.task.step, lease.task.ordinal))
    return lost[: ask.tasks_max]


def _open(ask: ClaimRequest) -> str:
    kinds = "('train', 'eval')" if ask.train else "('eval')"
    return (
        f"state = 'open' AND kind IN {kinds} AND state IN ('open', 'leased')"
        " AND (kind = 'eval' OR ordinal < ?)"
    )


def _ask_open(tx: Transaction, ask: ClaimRequest, count: int) -> Result:
    return tx.execute(
        f"SELECT {LEASE_COLUMNS} FROM tasks WHERE {_open(ask)}"
        f" ORDER BY kind, step, ordinal LIMIT ?{tx.skip_locked}",
        (ask.ordinal_end, count),
    )


def _fresh_lease(row: Row, now: float, ask: ClaimRequest) -> Lease:
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
        failures=row["failures"],
        prefixed=bool(row["prefixed"]),
    )


def _write_leases(tx: Transaction, leases: Sequence[Lease], ask: ClaimRequest, now: float) -> None:
    for some in slices(leases):
        tx.write(
            "UPDATE tasks SET state = 'leased', epoch = epoch + 1, worker = ?, incarnation = ?,"
            " version_lineage = CASE WHEN kind = 'eval' THEN lineage ELSE ? END,"
            " version_step = CASE WHEN kind = 'eval' THEN step ELSE ? END,"
            f" leased_at = ?, expires_at = ? WHERE task_id IN ({marks(some)})",
            (
                *(ask.worker, ask.incarnation, ask.lineage, ask.step),
                *(now, now + ask.lease_seconds),
                *(lease.task.task_id for lease in some),
            ),
        )
    rows = [
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
    ]
    tx.insert("attempts", ATTEMPT_COLUMNS, rows)


def extend(tx: Transaction, until: float, task_ids: Sequence[str]) -> None:
    """Move the end of leases."""
    for some in slices(task_ids):
        tx.execute(
            f"UPDATE tasks SET expires_at = ? WHERE task_id IN ({marks(some)})",
            (until, *some),
        )


def renew(
    tx: Transaction, worker: str, incarnation: int, task_ids: Sequence[str], lease_seconds: float
) -> tuple[str, ...]:
    """Extend leases of this incarnation; the ids it no longer holds come back."""
    check_incarnation(tx, worker, incarnation)
    rows = tx.execute(
        f"SELECT task_id FROM tasks WHERE {LEASED} AND worker = ? AND incarnation = ?"
        f" ORDER BY {BY_TASK}{tx.for_update}",
        (worker, incarnation),
    ).fetchall()
    mine = {row[0] for row in rows}
    extend(tx, tx.now + lease_seconds, [task_id for task_id in task_ids if task_id in mine])
    return tuple(task_id for task_id in task_ids if task_id not in mine)


def expire(tx: Transaction, task_ids: Sequence[str]) -> tuple[str, ...]:
    """Close tasks that nobody waits for any more; those that have ended otherwise stay as they are."""
    found: list[str] = []
    for some in slices(sorted(task_ids)):
        rows = tx.execute(
            f"SELECT task_id FROM tasks WHERE task_id IN ({marks(some)})"
            f" AND state IN ('open', 'leased') ORDER BY task_id{tx.for_update}",
            some,
        ).fetchall()
        found += [row[0] for row in rows]
    for some in slices(found):
        tx.execute(f"UPDATE tasks SET state = 'expired' WHERE task_id IN ({marks(some)})", some)
    give_up_attempts(tx, found)
    return tuple(found)


def give_up_attempts(tx: Transaction, task_ids: Sequence[str]) -> None:
    """End what is under way of tasks that are closed: reopened by a fork, they begin another attempt."""
    for some in slices(task_ids):
        tx.execute(
            "UPDATE attempts SET ended_at = ?, ending = 'given up' WHERE ending IS NULL"
            f" AND task_id IN ({marks(some)})",
            (tx.now, *some),
        )


def rearm(tx: Transaction, lease_seconds: float) -> int:
    """Give every lease one full term."""
    until = tx.now + lease_seconds
    rows = tx.execute(
        f"UPDATE tasks SET expires_at = ? WHERE {LEASED} RETURNING task_id",
        (until,),
    )
    return len(rows.fetchall())
