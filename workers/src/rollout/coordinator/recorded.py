"""Recorded batches as the learner was given them: the same for a learner that replays and for a debugger.

Pure: bodies and rows are given.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollout.codec import decode_body
from rollout.coordinator import messages as m
from rollout.ledger.records import Cursor, StepBatch
from rollout.types import Row, TrajectoryGroup

ROW_PREFIX = "r/"


def build_groups_batch(recorded: StepBatch) -> m.Batch:
    """The groups that a step was given, in data order. Raises LedgerError for an unreadable body."""
    bodies = {task_id: decode_body(body) for task_id, body in recorded.bodies.items()}
    by_task: dict[str, list[tuple[int, str]]] = {}
    for task_id, sample, trajectory_id in recorded.samples:
        by_task.setdefault(task_id, []).append((sample, trajectory_id))
    ordered = sorted(by_task.items(), key=lambda item: bodies[item[0]][0].ordinal)
    return m.Batch(
        step=recorded.step,
        ids=tuple(tuple(name for _, name in sorted(members)) for _, members in ordered),
        groups=tuple(
            TrajectoryGroup(
                ordinal=bodies[task_id][0].ordinal,
                trajectories=tuple(bodies[task_id][sample] for sample, _ in sorted(members)),
            )
            for task_id, members in ordered
        ),
        cursor=recorded.cursor,
        num_excluded=recorded.num_excluded,
    )


def recorded_ordinals(recorded: StepBatch) -> list[int]:
    """The rows that a step of an offline algorithm was given, in data order."""
    return sorted(int(task_id.removeprefix(ROW_PREFIX)) for task_id, _, _ in recorded.samples)


def build_rows_batch(
    step: int, ordinals: Sequence[int], rows: Sequence[Row], cursor: Cursor
) -> m.Batch:
    """The batch of an offline algorithm: ``rows[i]`` is the row of ``ordinals[i]``."""
    return m.Batch(
        step=step,
        ids=tuple((f"{ROW_PREFIX}{ordinal}",) for ordinal in ordinals),
        rows=tuple(
            m.DataRow(ordinal=ordinal, row=row) for ordinal, row in zip(ordinals, rows, strict=True)
        ),
        cursor=cursor,
    )
