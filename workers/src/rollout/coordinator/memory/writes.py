"""From what episodes wrote to the rows of a step: of the samples that it consumed, in the order of their tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from rollout.ledger.records import Disposition, MemoryRow, NewTask, SampleRow
from rollout.memory import find_wrong_writes
from rollout.types import Trajectory

Written = Iterable[tuple[NewTask, Sequence[SampleRow]]]
"""Tasks and their samples."""


def check_writes(made: Trajectory, task: NewTask) -> str:
    """What is wrong with what an episode wrote; empty when nothing is, or when it wrote nothing.

    Evaluations measure, and leave nothing behind.
    """
    if isinstance(made.memory, UnsetType):
        return ""
    if task.kind != "train":
        return f"sample {made.sample}: an evaluation writes into memory: expected it to leave nothing behind"
    wrong = find_wrong_writes(made.memory)
    return f"sample {made.sample}: {wrong}" if wrong else ""


def with_writes(
    samples: tuple[SampleRow, ...], made: Sequence[Trajectory]
) -> tuple[SampleRow, ...]:
    """The rows of a task's samples with what ``made``, their body, says that they wrote."""
    writes = {one.sample: one.memory for one in made if one.memory is not UNSET}
    if not writes:
        return samples
    return tuple(msgspec.structs.replace(row, writes=writes.get(row.sample, ())) for row in samples)


def rows_of_step(
    step: int, written: Written, dispositions: Iterable[Disposition]
) -> tuple[MemoryRow, ...]:
    """What a step writes down. Samples that it did not consume write nothing."""
    writers = [(task, row) for task, rows in written for row in rows if row.writes]
    if not writers:
        return ()
    consumed = {(one.task_id, one.sample) for one in dispositions if one.kind == "consumed"}
    return tuple(
        MemoryRow(
            step=step,
            ordinal=task.ordinal,
            sample=row.sample,
            key=write.key,
            value=write.value,
            vector=write.vector,
        )
        for task, row in sorted(writers, key=lambda one: (one[0].ordinal, one[1].sample))
        if (task.task_id, row.sample) in consumed
        for write in row.writes
    )
