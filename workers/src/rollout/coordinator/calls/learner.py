"""The learner's desk: where to start from, the next batch, replay, and the end of a run of steps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from rollout.coordinator.batch_building import (
    build_groups_batch,
    build_next_groups,
    build_rows_batch,
    plan_next_rows,
    recorded_ordinals,
)
from rollout.coordinator.calls.actors import is_alive, record_heartbeat
from rollout.coordinator.calls.admission import (
    admit_more,
    plan_admission,
    plan_evaluations,
    view_window,
)
from rollout.coordinator.calls.preemption import answer_told, give_notice
from rollout.coordinator.context import WAIT_MAX_SECONDS, RunContext, wait_for
from rollout.coordinator.plan import HELD_OUT
from rollout.coordinator.rules.batch_selection import (
    Decision,
    NotReady,
    Ready,
    decide_batch,
    is_exhausted,
    window_end,
)
from rollout.coordinator.state import Group, Worker, build_state
from rollout.errors import CoordinatorError
from rollout.ledger.records import Admission, AnchorManifest, Lease
from rollout.protocol import messages as m
from rollout.types import WeightVersion

log = logging.getLogger(__name__)

LEARNER = "learner"
FINISHED = "Finished"
"""The stop reason of a learner whose run has all its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Because of whom somebody waits: a text for people, and the workers that it names."""

    text: str
    workers: tuple[str, ...] = ()


async def start(run: RunContext, ask: m.LearnerStart) -> m.LearnerStarted:
    """Hand a new learner process its past: an anchor, and the committed steps after it."""
    async with run.turn:
        done = await run.ledger.register(LEARNER, LEARNER, pid=ask.pid, host=ask.host)
        state = run.state
        state.workers = {
            name: worker for name, worker in state.workers.items() if worker.role != LEARNER
        }
        state.workers[ask.worker] = Worker(
            name=ask.worker,
            role=LEARNER,
            incarnation=done.incarnation,
            seen_at=run.clock(),
            state="starting",
        )
        run.learner_until = None
        anchor = await _usable_anchor(run)
        replay = await run.ledger.records_after(0 if anchor is None else anchor.step)
    run.wake()
    log.info(
        "learner started incarnation=%d committed=%d anchor=%s",
        done.incarnation,
        state.step,
        None if anchor is None else anchor.name,
    )
    return m.LearnerStarted(
        incarnation=done.incarnation,
        lineage=state.lineage,
        committed_step=state.step,
        chain=state.chain,
        anchor=anchor,
        replay=replay,
        initial=state.versions.get((0, 0)),
        heartbeat_seconds=run.plan.heartbeat_seconds,
        steps_max=run.plan.steps_total,
    )


async def _usable_anchor(run: RunContext) -> AnchorManifest | None:
    """The newest anchor whose objects are all there."""
    for anchor in reversed(run.state.anchors):
        if all([await run.has_object(digest) for digest in anchor.objects.values()]):
            return anchor
        log.error("anchor %s lacks objects: an older one is used", anchor.name)
    return None


async def heartbeat(run: RunContext, ask: m.Heartbeat) -> m.HeartbeatAnswer:
    """The learner is alive and does this."""
    worker = record_heartbeat(run, ask.worker, LEARNER, ask.incarnation)
    worker.state, worker.step = ask.state, ask.step
    return m.HeartbeatAnswer(stop=run.stop_reason() is not None)


async def publish_initial(run: RunContext, ask: m.PublishInitial) -> m.Empty:
    """Version 0 exists: sampling may begin."""
    record_heartbeat(run, ask.worker, LEARNER, ask.incarnation)
    await _require_object(run, ask.version)
    async with run.turn:
        await run.ledger.publish_initial(ask.incarnation, ask.version, ask.chain)
        state = run.state
        if state.version is None:
            state.versions[(0, 0)] = state.version = ask.version
            state.chain = ask.chain
        await open_version(run)
    run.wake()
    return m.Empty()


async def open_version(run: RunContext) -> None:
    """Admit what the newest version calls for; also after a restart, so that nothing is forgotten."""
    state = run.state
    if state.version is None:
        return
    tasks = plan_admission(
        run.plan, state.step, state.cursor, state.next_admitted, view_window(run)
    )
    admission = Admission(
        tasks=tasks.tasks,
        next_admitted=tasks.next_admitted,
        exhausted=tasks.exhausted,
        evaluations=plan_evaluations(run.plan, state.lineage, state.step, state.cursor),
    )
    await run.ledger.admit(admission)
    state.admit(admission)


async def _require_object(run: RunContext, version: WeightVersion) -> None:
    if not await run.has_object(version.object):
        raise CoordinatorError(
            f"version {version.lineage}/{version.step} names object {version.object}, which is not in"
            " the store: upload it first, then commit"
        )


async def batch(run: RunContext, ask: m.BatchRequest) -> m.Batch:
    """The next batch as soon as it is complete; until then, whom it waits for."""
    record_heartbeat(run, ask.worker, LEARNER, ask.incarnation)
    if ask.told_seconds is not None:
        give_notice(run, ask.told_seconds, ask.worker)
    deadline = run.clock() + min(ask.wait_seconds, WAIT_MAX_SECONDS)
    while True:
        ticket = run.batches.ticket()
        worker = record_heartbeat(run, ask.worker, LEARNER, ask.incarnation)
        answer = await _try_batch(run, ask)
        if answer is not None:
            _stop_waiting(run)
            return msgspec.structs.replace(answer, anchor_every_steps=run.plan.anchor_every_steps)
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
    if run.plan.offline:
        return await _offline_batch(run, ask.step)
    await _expire_overdue(run)
    decision = decide_batch(run.plan, state.cursor.next_ordinal, view_window(run))
    if not isinstance(decision, Ready):
        return None
    if not decision.kept:
        await run.end("Failed", "AllSamplesLost", describe_loss(ask.step))
        return m.Batch(step=ask.step, stop="AllSamplesLost")
    return build_next_groups(run.plan, run.state.groups, ask.step, decision)


def _find_end(run: RunContext, step: int) -> m.Batch | None:
    """The stop of a learner: the run ends, has all its steps, or the learner was told to go."""
    reason = run.stop_reason()
    if reason is not None:
        return m.Batch(step=step, stop=reason)
    if step != run.state.step + 1:
        raise CoordinatorError(f"step {run.state.step} is committed; step {step} cannot be next")
    if is_last_step_done(run):
        return m.Batch(step=step, stop=FINISHED)
    return answer_told(run, step)


def _without_version(run: RunContext, step: int) -> m.Batch | None:
    """While nobody can sample: wait for the first version, or have a damaged one stored again."""
    if run.state.version is None:
        return None
    return m.Batch(step=step, waiting=find_wait(run).text, store_again=True)


def is_last_step_done(run: RunContext) -> bool:
    """Whether the run has all its steps."""
    last, cursor = run.plan.steps_total, run.state.cursor
    done = last is not None and run.state.step >= last
    return done or cursor.exhausted or is_exhausted(run.plan, cursor.next_ordinal)


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
    if run.plan.exact or since is None:
        return
    until = run.clock() - run.plan.sample_wait_seconds
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
    if plan.waves_max is None:
        return range(start, start + plan.groups_per_step)
    return range(start, window_end(plan, start, view_window(run)))


async def _offline_batch(run: RunContext, step: int) -> m.Batch:
    ordinals, cursor = plan_next_rows(run.plan, run.state.cursor.next_ordinal)
    batch = build_rows_batch(step, ordinals, await run.rows.train(ordinals), cursor)
    if run.plan.held_out is None or not run.plan.measures_after(step):
        return batch
    positions = range(run.plan.held_out.num_rows)
    rows = await run.rows.evaluation(*HELD_OUT, positions)
    held_out = tuple(
        m.DataRow(ordinal=position, row=row) for position, row in zip(positions, rows, strict=True)
    )
    return msgspec.structs.replace(batch, held_out=held_out)


async def replay(run: RunContext, ask: m.ReplayRequest) -> m.Batch:
    """The batch of a committed step, as it was handed out then."""
    record_heartbeat(run, ask.worker, LEARNER, ask.incarnation)
    recorded = await run.ledger.batch_of(ask.step)
    if not run.plan.offline:
        return build_groups_batch(recorded)
    ordinals = recorded_ordinals(recorded)
    rows = await run.rows.train(ordinals)
    return build_rows_batch(ask.step, ordinals, rows, recorded.cursor)


async def fork(run: RunContext, ask: m.Fork) -> m.Forked:
    """Open a new lineage where replay could not meet the committed digests."""
    record_heartbeat(run, ask.worker, LEARNER, ask.incarnation)
    await _require_object(run, ask.version)
    async with run.turn:
        lineage = await run.ledger.fork(
            ask.incarnation, ask.step, ask.version, ask.chain, ask.reason
        )
        await run.ledger.add_event(
            "forked", ask.reason, {"lineage": lineage, "base_step": ask.step}
        )
        await reload_state(run)
        await open_version(run)
    log.warning("new lineage=%d after step=%d reason=%s", lineage, ask.step, ask.reason)
    run.wake()
    return m.Forked(lineage=lineage)


async def reload_state(run: RunContext) -> None:
    """Build the picture anew from the ledger; keep what only this process knows, an order to stop above all."""
    stored = await run.ledger.load()
    known, run.state = run.state, build_state(stored, pools_rewards=run.plan.pools_rewards)
    run.state.workers, run.state.stopping = known.workers, known.stopping
    run.state.tokens, run.state.unfinished = known.tokens, known.unfinished


async def failed(run: RunContext, ask: m.Failed) -> m.Empty:
    """The learner says that the run cannot go on. Raises Fenced for one that was replaced."""
    record_heartbeat(run, ask.worker, LEARNER, ask.incarnation)
    # This coordinator may be younger than both: the ledger knows who is the newest.
    await run.ledger.worker_ended(LEARNER, ask.incarnation, f"failed: {ask.message}")
    await run.end("Failed", ask.kind, ask.message)
    return m.Empty()


def find_wait(run: RunContext) -> Culprit:
    """Whom the learner waits for, in one line: which task, which worker, which try."""
    state = run.state
    if state.version is None:
        return Culprit(text="version 0 is not published")
    if run.damaged == state.version:
        text = f"the learner has not stored version {state.step} again, which was damaged"
        return Culprit(text=text, workers=_learners(run))
    decision: Decision = decide_batch(run.plan, state.cursor.next_ordinal, view_window(run))
    if not isinstance(decision, NotReady):
        return _find_silence(run) or Culprit(text="nobody: the batch is complete")
    group = state.groups.get(decision.ordinal)
    if group is None:
        return Culprit(text=f"task t/{decision.ordinal} is not admitted yet")
    more = f", {decision.missing} tasks missing" if decision.missing > 1 else ""
    return _find_holder(run, group.task.task_id, group.lease, more)


def _learners(run: RunContext) -> tuple[str, ...]:
    return tuple(w.name for w in run.state.workers.values() if w.role == LEARNER)


def _find_silence(run: RunContext) -> Culprit | None:
    """Of a learner that was not heard for a while; None for one that was, or is not needed any more."""
    learners = [w for w in run.state.workers.values() if w.role == LEARNER]
    has_ended = any(worker.outcome is not None for worker in learners)
    silent = run.clock() - max((w.seen_at for w in learners), default=run.started_at)
    if silent <= run.plan.heartbeat_seconds * 2 or (has_ended and run.learner_until is None):
        return None
    if has_ended:
        text = f"the learner was told to go; there is no other one for {silent:.0f} s"
        return Culprit(text=text)
    return Culprit(text=f"the learner is silent for {silent:.0f} s", workers=_learners(run))


def find_hold(run: RunContext) -> tuple[str, Culprit] | None:
    """What the run as a whole waits for, and whom; None while its workers go on, or say so themselves."""
    if run.state.outcome is not None:
        return None
    silence = _find_silence(run)
    if not is_last_step_done(run):
        return (f"step {run.state.step + 1}", silence) if silence else None
    pending = run.state.pending_evaluations()
    if not pending:
        missing = Culprit(text="the learner has not saved it", workers=_learners(run))
        return "the learner's last anchor", silence or missing
    first = pending[0]
    name, split, _, step = first.key
    prompts = (n for n in range(first.num_tasks) if n not in first.rewards.keys() | first.excluded)
    position = next(prompts, 0)
    holder = _find_holder(run, f"prompt {position}", first.leased.get(position))
    return f"evaluation {name} ({split}) of step {step}", holder


def _find_holder(run: RunContext, what: str, lease: Lease | None, more: str = "") -> Culprit:
    now = run.clock()
    if lease is None:
        alive = [w for w in run.state.workers.values() if w.role == "actor" and w.outcome is None]
        alive = [w for w in alive if is_alive(run, w.name, now)]
        if not alive:
            return Culprit(text=f"{what} is not started: no actor is alive{more}")
        busy = ", ".join(f"{worker.name} {worker.state}".strip() for worker in alive[:3])
        names = tuple(worker.name for worker in alive[:3])
        return Culprit(text=f"{what} is not started: {busy}{more}", workers=names)
    seen = run.state.workers.get(lease.worker)
    silent = now - (run.started_at if seen is None else seen.seen_at)
    doing = "" if seen is None or not seen.state else f" ({seen.state})"
    quiet = f", silent for {silent:.0f} s" if silent > run.plan.heartbeat_seconds * 2 else ""
    text = f"{what} is with {lease.worker}{doing}, try {lease.attempt}{quiet}{more}"
    return Culprit(text=text, workers=(lease.worker,))
