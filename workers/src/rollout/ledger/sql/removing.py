"""Removing bodies that nothing needs any more: what is gone is written down in the transaction that removes it.

A body holds the tokens, logprobs and texts of one task's samples. Ids, rewards, lengths, dispositions, plans,
versions and chain values stay: books and hash chain are what they were. A body that is missing and was not
removed here is lost, and told as such.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollout.errors import LedgerBroken, LedgerError, NoLongerKept
from rollout.ledger.records import Removal
from rollout.ledger.sql.cells import read_document
from rollout.ledger.sql.chain import head_step, next_ordinal, read_ancestry
from rollout.ledger.sql.tasks import lock_run
from rollout.ledger.sql.transaction import EVERYTHING, Row, Transaction, marks, slices
from rollout.ledger.views import RemovedView

SINCE_FORMAT = 5
"""Older ledgers, which readers take as they are, keep everything."""

SOME, ALL = 1, 2
"""What ``evaluations.removed`` says once a removal has begun, and when no body is left."""

Sized = Sequence[tuple[str, int]]
"""Tasks, and how many bytes the body of each has."""


def remove_bodies(tx: Transaction, step: int, num_max: int) -> Removal:
    """Remove up to ``num_max`` bodies of what ended by ``step`` of the live chain, oldest first.

    Of evaluations, those of versions up to ``step``; each name's first and newest one keep theirs. Raises
    LedgerError where an anchor would have to be resumed from without what it replays.
    """
    lock_run(tx)
    check_free(tx, step, "bodies")
    before = tx.execute("SELECT removed_step, removed_ordinal FROM run").fetchone()
    trained, reached = _find_trained(tx, before[1], max(before[1], next_ordinal(tx, step)), num_max)
    _delete(tx, trained)
    evaluated, left = _remove_evaluations(tx, step, num_max - len(trained))
    gone = (*trained, *evaluated)
    size = sum(one[1] for one in gone)
    tx.execute(
        "UPDATE run SET removed_step = ?, removed_ordinal = ?, removed_bodies = removed_bodies + ?,"
        " removed_bytes = removed_bytes + ?",
        (max(before[0], step), reached, len(gone), size),
    )
    return Removal(num_bodies=len(gone), size_bytes=size, more=len(trained) == num_max or left)


def check_free(tx: Transaction, step: int, what: str) -> None:
    """Raise LedgerError where something that may be resumed from replays a step up to this one; ``what`` was to go."""
    first = min(_anchored(tx), default=None)
    if first is None or not 0 <= step <= min(first, head_step(tx)):
        needed = "none is saved" if first is None else f"the oldest one is of step {first}"
        raise LedgerError(
            f"{what} of steps up to {step} cannot be removed: a snapshot may need them, {needed}"
        )


def _anchored(tx: Transaction) -> list[int]:
    """The steps of the anchors that the live lineage can start from."""
    found: list[int] = []
    for lineage, bound in read_ancestry(tx):
        rows = tx.execute(
            "SELECT step FROM anchors WHERE lineage = ? AND deleted = 0 AND step <= ?",
            (lineage, EVERYTHING if bound is None else bound),
        )
        found += [row[0] for row in rows]
    return found


def _find_trained(tx: Transaction, first: int, end: int, num_max: int) -> tuple[Sized, int]:
    """Bodies of training tasks from ``first`` to before ``end``; the first ordinal that is not looked at."""
    rows = tx.execute(
        "SELECT t.task_id, length(b.body), t.ordinal FROM tasks t JOIN bodies b ON b.task_id = t.task_id"
        " WHERE t.kind = 'train' AND t.kind <> 'eval' AND t.ordinal >= ? AND t.ordinal < ?"
        " ORDER BY t.ordinal LIMIT ?",
        (first, end, num_max),
    ).fetchall()
    reached = rows[-1][2] + 1 if len(rows) == num_max else end
    return [(row[0], row[1]) for row in rows], reached


def _remove_evaluations(tx: Transaction, step: int, num_max: int) -> tuple[Sized, bool]:
    """Remove bodies of evaluations that are over; the flag says that some are left."""
    gone: list[tuple[str, int]] = []
    for key in _plan_evaluations(tx, step):
        room = num_max - len(gone)
        if room <= 0:
            return gone, True
        gone += _remove_evaluation(tx, key, room)
    return gone, len(gone) == num_max


def _remove_evaluation(tx: Transaction, key: tuple[str, str, int, int], num_max: int) -> Sized:
    rows = tx.execute(
        "SELECT t.task_id, length(b.body) FROM tasks t JOIN bodies b ON b.task_id = t.task_id"
        " WHERE t.kind = 'eval' AND t.evaluation = ? AND t.split = ? AND t.lineage = ? AND t.step = ?"
        " ORDER BY t.task_id LIMIT ?",
        (*key, num_max),
    ).fetchall()
    found = [(row[0], row[1]) for row in rows]
    _delete(tx, found)
    tx.execute(
        "UPDATE evaluations SET removed = ? WHERE name = ? AND split = ? AND lineage = ? AND step = ?",
        (ALL if len(found) < num_max else SOME, *key),
    )
    return found


def _plan_evaluations(tx: Transaction, step: int) -> list[tuple[str, str, int, int]]:
    """Evaluations whose answers go: those that are over, up to ``step``, without each name's first and newest.

    A report shows the same prompts before and after.
    """
    rows = tx.execute(
        "SELECT name, split, lineage, step, summary FROM evaluations WHERE removed < ? AND summary IS NOT"
        " NULL ORDER BY step, lineage, name, split",
        (ALL,),
    ).fetchall()
    shown: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if not _is_dropped(row):
            shown.setdefault((row["name"], row["split"]), []).append(row["step"])
    kept = {(*name, end) for name, steps in shown.items() for end in (min(steps), max(steps))}
    return [
        (row["name"], row["split"], row["lineage"], row["step"])
        for row in rows
        if row["step"] <= step
        and (_is_dropped(row) or (row["name"], row["split"], row["step"]) not in kept)
    ]


def _is_dropped(row: Row) -> bool:
    return bool(read_document(row["summary"], "evaluations.summary").get("dropped"))


def _delete(tx: Transaction, bodies: Sized) -> None:
    for some in slices([task_id for task_id, _ in bodies]):
        tx.execute(f"DELETE FROM bodies WHERE task_id IN ({marks(some)})", some)


def read_removed(tx: Transaction, have: int = SINCE_FORMAT) -> RemovedView:
    """What is no longer kept. ``have`` is the ledger's format."""
    if have < SINCE_FORMAT:
        return RemovedView(step=0, num_bodies=0, size_bytes=0)
    row = tx.execute("SELECT removed_step, removed_bodies, removed_bytes FROM run").fetchone()
    return RemovedView(step=row[0], num_bodies=row[1], size_bytes=row[2])


def check_not_lost(tx: Transaction, missing: Sequence[str], have: int = SINCE_FORMAT) -> None:
    """Raises LedgerBroken for a task whose body is missing and was not removed."""
    known = _removed_of(tx, missing) if have >= SINCE_FORMAT else set()
    lost = sorted(set(missing) - known)
    if lost:
        raise LedgerBroken(
            f"the ledger has lost the body of {lost[0]}, which no removal has written down; restore it"
            " from a copy, or start a new run; snapshots/ and objects/ of this run stay usable"
        )


def _removed_of(tx: Transaction, task_ids: Sequence[str]) -> set[str]:
    reached = tx.execute("SELECT removed_ordinal FROM run").fetchone()[0]
    found: set[str] = set()
    for some in slices(task_ids):
        rows = tx.execute(
            "SELECT t.task_id, t.kind, t.ordinal, e.removed FROM tasks t LEFT JOIN evaluations e"
            " ON e.name = t.evaluation AND e.split = t.split AND e.lineage = t.lineage"
            f" AND e.step = t.step WHERE t.task_id IN ({marks(some)})",
            some,
        )
        found.update(
            task_id
            for task_id, kind, ordinal, removed in rows
            if (removed if kind == "eval" else kind == "train" and ordinal < reached)
        )
    return found


def check_batch_kept(
    tx: Transaction, step: int, missing: Sequence[str], have: int = SINCE_FORMAT
) -> None:
    """Raises NoLongerKept for a step some of whose bodies were removed, LedgerBroken where they are lost."""
    if not missing:
        return
    check_not_lost(tx, missing, have)
    last = read_removed(tx, have).step
    raise NoLongerKept(
        f"step {step} cannot be taken again: bodies of steps up to {last} are no longer kept"
        f" (storage.ledger.retention); begin at a snapshot of step {last} or later"
    )


def check_fork(tx: Transaction, base_step: int) -> None:
    """Raises NoLongerKept for a lineage that would take tasks again whose bodies are gone."""
    removed = tx.execute("SELECT removed_ordinal, removed_step FROM run").fetchone()
    if next_ordinal(tx, base_step) < removed[0]:
        raise NoLongerKept(
            f"cannot fork after step {base_step}: bodies of steps up to {removed[1]} are no longer kept"
        )
