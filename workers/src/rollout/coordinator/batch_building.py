"""What the learner is given for a step: the next batch, or a committed one as it was.

Pure: bodies and rows are given. The same for a learner that trains, one that replays, and a debugger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rollout.codec import decode_body
from rollout.coordinator.plan import RunPlan
from rollout.coordinator.rules.batch_selection import Ready, is_exhausted
from rollout.coordinator.state import Group
from rollout.ledger.records import Cursor, StepBatch
from rollout.protocol import messages as m
from rollout.types import Row, TrajectoryGroup

ROW_PREFIX = "r/"


def build_next_groups(
    plan: RunPlan, groups: Mapping[int, Group], step: int, decision: Ready
) -> m.Batch:
    """The batch that ``decision`` makes of the window ``groups``."""
    kept = [groups[ordinal] for ordinal in decision.kept]
    gone = (*decision.kept, *decision.filtered, *decision.expired, *decision.surplus)
    lost = sum(len(groups[ordinal].lost) for ordinal in gone)
    # Groups are already msgpack: they go out as they are, and are decoded by the learner alone.
    packed: tuple[TrajectoryGroup, ...] = tuple(msgspec.Raw(group.packed) for group in kept)  # pyrefly: ignore[bad-assignment] - packed already: encoded as it is
    return m.Batch(
        step=step,
        ids=tuple(ids_of(group) for group in kept),
        groups=packed,
        cursor=_cursor(plan, decision.next_ordinal),
        num_excluded=plan.train.num_samples * len(decision.excluded) + lost,
    )


def ids_of(group: Group) -> tuple[str, ...]:
    """The ids of a group's trajectories, by sample."""
    return tuple(sample.trajectory_id for sample in group.samples)


def plan_next_rows(plan: RunPlan, start: int) -> tuple[range, Cursor]:
    """The rows that the next step of an offline algorithm takes, and where the data stands after it."""
    stop = start + plan.train.tasks_per_step
    if plan.train.tasks_total is not None:
        stop = min(stop, plan.train.tasks_total)
    return range(start, stop), _cursor(plan, stop)


def _cursor(plan: RunPlan, next_ordinal: int) -> Cursor:
    return Cursor(next_ordinal=next_ordinal, exhausted=is_exhausted(plan, next_ordinal))


def build_groups_batch(recorded: StepBatch) -> m.Batch:
    """The groups that a step was given, in data order. Raises LedgerError for an unreadable body."""
    bodies = {
        task_id: {made.sample: made for made in decode_body(body)}
        for task_id, body in recorded.bodies.items()
    }
    ordinals = {task_id: next(iter(made.values())).ordinal for task_id, made in bodies.items()}
    by_task: dict[str, list[tuple[int, str]]] = {}
    for task_id, sample, trajectory_id in recorded.samples:
        by_task.setdefault(task_id, []).append((sample, trajectory_id))
    ordered = sorted(by_task.items(), key=lambda item: ordinals[item[0]])
    return m.Batch(
        step=recorded.step,
        ids=tuple(tuple(name for _, name in sorted(members)) for _, members in ordered),
        groups=tuple(
            TrajectoryGroup(
                ordinal=ordinals[task_id],
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
