"""The end of attempts as SQL: each judged on its own, all of one call written together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout.ledger.records import AttemptEnd, Limits, TaskState, Verdict
from rollout.ledger.sql.tasks import check_incarnation, require_holder
from rollout.ledger.sql.transaction import Result, Row, Transaction, marks, slices

TRAJECTORY_COLUMNS = "task_id, sample, trajectory_id, epoch, reward, num_tokens, ending"


def submit(
    tx: Transaction, limits: Limits, worker: str, incarnation: int, ends: Sequence[AttemptEnd]
) -> tuple[Verdict, ...]:
    """End attempts, each on its own merits. Raises Fenced."""
    if not ends:
        check_incarnation(tx, worker, incarnation)
    asked = [_ask_tasks(tx, worker, incarnation, some) for some in slices(ends)]
    found = _read_attempts(tx, _read_tasks(asked, worker, incarnation), ends)
    verdicts: list[Verdict] = []
    good: list[AttemptEnd] = []
    continued: list[str] = []
    for end in ends:
        row = found.get((end.task_id, end.epoch))
        refusal = _refusal(row, end)
        if row is None or refusal is not None:
            verdicts.append(refusal or _refused("no such attempt", "surplus"))
        elif row.ending is not None:
            verdicts.append(_repeated(tx, row, end))
        elif end.failure is not None:
            verdicts.append(_fail(tx, limits, end))
        else:
            good.append(end)
            continued += [end.task_id] if row.prefixed else []
            verdicts.append(Verdict(accepted=True, reason="", state="done"))
        # The same attempt twice in one call: the second is a repetition.
        found.pop((end.task_id, end.epoch), None)
    _accept(tx, good)
    _forget_prefixes(tx, continued)
    return tuple(verdicts)


@dataclass(frozen=True, slots=True)
class _Found:
    """An attempt and its task. ``ending`` None: under way."""

    state: TaskState
    epoch: int
    num_samples: int
    data_failures: int
    ending: str | None
    prefixed: bool


def _ask_tasks(
    tx: Transaction, worker: str, incarnation: int, ends: Sequence[AttemptEnd]
) -> Result:
    """The tasks, and whose worker's name is: the fence's row is kept before any task's, as everywhere."""
    return tx.execute(
        f"WITH fence AS (SELECT incarnation FROM workers WHERE worker = ?{tx.for_share}),"
        " found AS (SELECT task_id, state, epoch, num_samples, data_failures, prefixed FROM tasks"
        f" WHERE (SELECT incarnation FROM fence) = ? AND task_id IN ({marks(ends)})"
        f" ORDER BY task_id{tx.for_update})"
        " SELECT (SELECT incarnation FROM fence) AS holder, found.* FROM (SELECT 1) AS one"
        " LEFT JOIN found ON 1 = 1",
        [worker, incarnation, *(end.task_id for end in ends)],
    )


def _read_tasks(asked: Sequence[Result], worker: str, incarnation: int) -> dict[str, Row]:
    """The tasks that exist, by id. Raises Fenced."""
    tasks: dict[str, Row] = {}
    for rows in asked:
        for row in rows.fetchall():
            require_holder(worker, row["holder"], incarnation)
            tasks[row["task_id"]] = row
    return tasks


def _read_attempts(
    tx: Transaction, tasks: dict[str, Row], ends: Sequence[AttemptEnd]
) -> dict[tuple[str, int], _Found]:
    """The attempts that exist. That of a leased task at its own epoch is always under way."""
    found: dict[tuple[str, int], _Found] = {}
    for end in ends:
        task = tasks.get(end.task_id)
        if task is None:
            continue
        ending: str | None = None
        if task["state"] != "leased" or task["epoch"] != end.epoch:
            row = tx.execute(
                "SELECT ending FROM attempts WHERE task_id = ? AND epoch = ?",
                (end.task_id, end.epoch),
            ).fetchone()
            if row is None:
                continue
            ending = row[0]
        found[(end.task_id, end.epoch)] = _Found(
            task["state"],
            task["epoch"],
            task["num_samples"],
            task["data_failures"],
            ending,
            bool(task["prefixed"]),
        )
    return found


def _refused(reason: str, state: TaskState) -> Verdict:
    return Verdict(accepted=False, reason=reason, state=state)


def _refusal(row: _Found | None, end: AttemptEnd) -> Verdict | None:
    """Why an end cannot be taken; None when it can, or repeats one that was."""
    if row is None:
        return _refused("no such attempt", "surplus")
    if row.ending is None and (row.state != "leased" or row.epoch != end.epoch):
        reason = f"epoch {end.epoch} is stale: the task is {row.state} at epoch {row.epoch}"
        return _refused(reason, row.state)
    if end.failure is None and not 1 <= len(end.samples) <= row.num_samples:
        reason = f"{end.task_id} wants {row.num_samples} samples, got {len(end.samples)}"
        return _refused(reason, row.state)
    return None


def _repeated(tx: Transaction, row: _Found, end: AttemptEnd) -> Verdict:
    """An attempt that has ended already: accepted again only when it ended in the same way."""
    same = row.ending == (end.failure or "accepted")
    if same and end.failure is None:
        stored = tx.execute(
            "SELECT trajectory_id FROM trajectories WHERE task_id = ? ORDER BY sample",
            (end.task_id,),
        ).fetchall()
        same = [item[0] for item in stored] == [item.trajectory_id for item in end.samples]
    reason = "" if same else f"the attempt already ended as {row.ending}"
    return Verdict(accepted=same, reason=reason, state=row.state, data_failures=row.data_failures)


def _accept(tx: Transaction, ends: Sequence[AttemptEnd]) -> None:
    """Write what was judged good. The newest attempt of a leased task is its only one under way."""
    rows = [
        (end.task_id, s.sample, s.trajectory_id, end.epoch, s.reward, s.num_tokens, s.ending)
        for end in ends
        for s in end.samples
    ]
    tx.insert("trajectories", TRAJECTORY_COLUMNS, rows)
    tx.insert("bodies", "task_id, body", [(end.task_id, end.body) for end in ends])
    moment, values = tx.moment
    for some in slices(ends):
        tx.write(
            f"UPDATE tasks SET state = 'done' WHERE task_id IN ({marks(some)})",
            [end.task_id for end in some],
        )
        tx.write(
            f"UPDATE attempts SET ended_at = {moment}, ending = 'accepted', message = ''"
            f" WHERE task_id IN ({marks(some)}) AND ending IS NULL",
            [*values, *(end.task_id for end in some)],
        )


def _fail(tx: Transaction, limits: Limits, end: AttemptEnd) -> Verdict:
    assert end.failure is not None
    infrastructure = int(end.failure == "infrastructure")
    tx.execute(
        "UPDATE attempts SET ended_at = ?, ending = ?, message = ? WHERE task_id = ? AND epoch = ?",
        (tx.now, end.failure, end.message, end.task_id, end.epoch),
    )
    row = tx.execute(
        "UPDATE tasks SET worker = NULL, failures = failures + ?, data_failures = data_failures + ?,"
        " state = CASE WHEN failures + ? >= ? THEN 'excluded' ELSE 'open' END"
        " WHERE task_id = ? RETURNING state, data_failures",
        (
            infrastructure,
            int(end.failure == "data"),
            infrastructure,
            limits.failures_max,
            end.task_id,
        ),
    ).fetchone()
    if end.prefixes and row[0] == "open":
        _keep_prefixes(tx, end)
    return Verdict(accepted=True, reason="", state=row[0], data_failures=row[1])


def _keep_prefixes(tx: Transaction, end: AttemptEnd) -> None:
    """The beginnings of the last attempt that left any take the place of earlier ones."""
    tx.execute(
        "INSERT INTO prefixes (task_id, epoch, body) VALUES (?, ?, ?) ON CONFLICT (task_id) DO UPDATE"
        " SET epoch = excluded.epoch, body = excluded.body",
        (end.task_id, end.epoch, end.prefixes),
    )
    tx.execute("UPDATE tasks SET prefixed = 1 WHERE task_id = ?", (end.task_id,))


def _forget_prefixes(tx: Transaction, task_ids: Sequence[str]) -> None:
    """A task with a result needs its beginnings no more."""
    for some in slices(task_ids):
        tx.execute(f"UPDATE tasks SET prefixed = 0 WHERE task_id IN ({marks(some)})", some)
        tx.execute(f"DELETE FROM prefixes WHERE task_id IN ({marks(some)})", some)
