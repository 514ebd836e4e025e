"""A learner that was told to go, by a signal and before its time: whether its state is saved first.

The cut is the one that a stop makes, for the learner alone: its next question for a batch is answered with a
stop, and an anchor is saved at that boundary when it fits into the time that is left. The run goes on with
the next learner. Kept in memory: whoever forgets it only has more to replay.
"""

from __future__ import annotations

import logging

from rollout.coordinator.context import RunContext
from rollout.protocol import messages as m

log = logging.getLogger(__name__)

PREEMPTED = "Preempted"
"""The stop reason of a learner that was told to go while its run goes on."""


def give_notice(run: RunContext, seconds: float, whose: str) -> None:
    """Part of the learner is killed in so many seconds; the first to be killed counts."""
    until = run.clock() + seconds
    if run.learner_until is None:
        log.info("learner told to go by=%s seconds=%.0f", whose, seconds)
    if run.learner_until is None or until < run.learner_until:
        run.learner_until = until
        run.batches.beat()


def may_save(run: RunContext) -> bool:
    """Whether an anchor is worth a try: it was asked for, and every rank still works."""
    return run.plan.snapshots.saves_on_notice and not run.group.trouble


def answer_told(run: RunContext, step: int) -> m.Batch | None:
    """The stop of a learner that was told to go; None for one that was not."""
    if run.learner_until is None:
        return None
    left = max(0.0, run.learner_until - run.clock()) if may_save(run) else 0.0
    return m.Batch(step=step, stop=PREEMPTED, save_seconds=left)
