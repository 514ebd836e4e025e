"""The learner's next batch: made once every group is there, given up in part past the bound, or a stop."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from rollout.coordinator.batch_building import build_next_groups, build_rows_batch, plan_next_rows
from rollout.coordinator.calls.admission import admit_more, view_window
from rollout.coordinator.calls.preemption import answer_told, give_notice
from rollout.coordinator.calls.registry import answers
from rollout.coordinator.context import FINISHED, WAIT_MAX_SECONDS, Awaited, RunContext, wait_for
from rollout.coordinator.liveness import record_heartbeat
from rollout.coordinator.plan import HELD_OUT
from rollout.coordinator.rules.batch_selection import (
    Decision,
    NotReady,
    Ready,
    batch_end,
    decide_batch,
    window_end,
)
from rollout.coordinator.state import Group
from rollout.coordinator.waits import find_wait
from rollout.errors import CoordinatorError
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.envelope import Envelope

log = logging.getLogger(__name__)


@answers(routes.BATCH)
async def batch(run: RunContext, sender: Envelope, ask: m.BatchRequest) -> m.Batch:
    """The next batch as soon as it is complete; until then, whom it waits for."""
    record_heartbeat(run, sender, "learner")
    if ask.told_seconds is not None:
        give_notice(run, ask.told_seconds, sender.worker)
    run.saving = ask.saving
    deadline = run.clock() + min(ask.wait_seconds, WAIT_MAX_SECONDS)
    while True:
        ticket = run.batches.ticket()
        worker = record_heartbeat(run, sender, "learner")
        answer = await _try_batch(run, ask)
        if answer is not None:
            _stop_waiting(run)
            return msgspec.structs.replace(
                answer,
                anchor_every_steps=run.plan.snapshots.anchor_every_steps,
                replay_steps_max=run.plan.snapshots.replay_steps_max,
            )
        _start_waiting(run, ask.step)
        left = deadline - run.clock()
        if left <= 0:
            return m.Batch(step=ask.step, waiting=find_wait(run).text)
        worker.state = f"waiting for the batch of step {ask.step}"
        await wait_for(ticket, min(left, run.plan.lease_seconds / 4))


def _start_waiting(run: RunContext, step: int) -> None:
    """From the first answer that there is no batch yet: a question that is refused waits for nothing."""
    if run.waits.learner_since is None:
        run.waits.learner_since, run.waits.learner_for = run.clock(), f"the batch of step {step}"


def _stop_waiting(run: RunContext) -> None:
    if run.waits.learner_since is not None:
        run.waits.learner_seconds += run.clock() - run.waits.learner_since
        run.waits.learner_since = None


async def _try_batch(run: RunContext, ask: m.BatchRequest) -> m.Batch | None:
    state = run.state
    if (end := _find_end(run, ask.step)) is not None:
        return end
    if state.version is None or run.damaged == state.version:
        return _without_version(run, ask.step)
    if run.plan.train.offline:
        return await _offline_batch(run, ask.step)
    await _expire_overdue(run)
    if _still_waits(run):
        return None
    decision = decide_batch(run.plan, state.cursor.next_ordinal, view_window(run))
    if not isinstance(decision, Ready):
        run.waits.awaited = _await(run, decision)
        return None
    if not decision.kept:
        await run.end("Failed", "AllSamplesLost", describe_loss(ask.step))
        return m.Batch(step=ask.step, stop="AllSamplesLost")
    return build_next_groups(run.plan, run.state.groups, ask.step, decision)


def _await(run: RunContext, decision: Decision) -> Awaited | None:
    """What no batch can do without: nothing with refills or groups asked for besides, which make up for others."""
    plan, cursor = run.plan, run.state.cursor.next_ordinal
    makes_up = plan.train.extra_groups or plan.train.waves_max is not None
    if not isinstance(decision, NotReady) or makes_up:
        return None
    end = batch_end(plan, cursor, {})
    return Awaited(plan=plan, cursor=cursor, ordinal=decision.ordinal, end=end)


def _still_waits(run: RunContext) -> bool:
    """Whether the last decision stands: spares every result that comes a look at the whole window."""
    awaited, state = run.waits.awaited, run.state
    if (
        awaited is None
        or awaited.plan is not run.plan
        or awaited.cursor != state.cursor.next_ordinal
    ):
        return False
    for ordinal in range(awaited.ordinal, awaited.end):
        group = state.groups.get(ordinal)
        if group is None or not group.view().resolved:
            run.waits.awaited = replace(awaited, ordinal=ordinal)
            return True
    return False


def _find_end(run: RunContext, step: int) -> m.Batch | None:
    """The stop of a learner: the run ends, has all its steps, or the learner was told to go."""
    reason = run.stop_reason()
    if reason is not None:
        return m.Batch(step=step, stop=reason)
    if step != run.state.step + 1:
        raise CoordinatorError(f"step {run.state.step} is committed; step {step} cannot be next")
    if run.is_last_step_done():
        return m.Batch(step=step, stop=FINISHED)
    return answer_told(run, step)


def _without_version(run: RunContext, step: int) -> m.Batch | None:
    """While nobody can sample: wait for the first version, or have a damaged one stored again."""
    if run.state.version is None:
        return None
    return m.Batch(step=step, waiting=find_wait(run).text, store_again=True)


def describe_loss(step: int) -> str:
    """What to say when a whole batch was lost to infrastructure."""
    return (
        f"every sample of step {step} was excluded after repeated infrastructure failures, or was not"
        " back in time: see the actors' logs; the run can be resumed"
    )


async def _expire_overdue(run: RunContext) -> None:
    """Past the bound a missing sample is given up, except where the run may not depend on time.

    With dynamic sampling it is to be made good: no result comes that would ask for a refill.
    """
    since = run.waits.learner_since
    if run.plan.numerics.exact or since is None:
        return
    until = run.clock() - run.plan.limits.sample_wait_seconds
    if since > until:
        return
    groups = (run.state.groups.get(ordinal) for ordinal in step_window(run))
    waited_for = [group for group in groups if group is not None and not group.view().resolved]
    # A refill that came while the learner waited has its own time.
    overdue = [group for group in waited_for if max(since, group.entered_at) <= until]
    if overdue:
        await _expire(run, overdue)
        await admit_more(run)


async def _expire(run: RunContext, overdue: Sequence[Group]) -> None:
    """Give groups up for good, in the ledger first: what comes of them later must not be consumed."""
    expired = set(await run.ledger.expire([group.task.task_id for group in overdue]))
    for group in overdue:
        # A result may have become durable meanwhile.
        if group.task.task_id in expired:
            log.warning("sample expired task=%s", group.task.task_id)
            run.state.release(group.task, "expired")


def step_window(run: RunContext) -> range:
    """The groups that the next step closes, refills included."""
    start, plan = run.state.cursor.next_ordinal, run.plan
    if plan.train.waves_max is None:
        return range(start, start + plan.train.groups_per_step)
    return range(start, window_end(plan, start, view_window(run)))


async def _offline_batch(run: RunContext, step: int) -> m.Batch:
    ordinals, cursor = plan_next_rows(run.plan, run.state.cursor.next_ordinal)
    batch = build_rows_batch(step, ordinals, await run.rows.train(ordinals), cursor)
    if run.plan.train.held_out is None or not run.plan.train.measures_after(step):
        return batch
    positions = range(run.plan.train.held_out.num_rows)
    rows = await run.rows.evaluation(*HELD_OUT, positions)
    held_out = tuple(
        m.DataRow(ordinal=position, row=row) for position, row in zip(positions, rows, strict=True)
    )
    return msgspec.structs.replace(batch, held_out=held_out)
