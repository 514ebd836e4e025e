"""The learner's desk: where to start from, the first version, replay, lineages, and how it ends."""

from __future__ import annotations

import logging

import msgspec

from rollout.coordinator.batch_building import (
    build_groups_batch,
    build_rows_batch,
    recorded_ordinals,
)
from rollout.coordinator.calls.actors import end_worker
from rollout.coordinator.calls.admission import plan_admission, plan_evaluations, view_window
from rollout.coordinator.calls.registry import answers
from rollout.coordinator.context import RunContext
from rollout.coordinator.duties.retention import collect
from rollout.coordinator.liveness import record_heartbeat
from rollout.coordinator.state import LEARNER, Worker, build_state
from rollout.ledger.records import Admission, AnchorManifest
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.envelope import Envelope
from rollout.types import WeightVersion

log = logging.getLogger(__name__)


@answers(routes.START)
async def start(run: RunContext, sender: Envelope, ask: m.LearnerStart) -> m.LearnerStarted:
    """Hand a new learner process its past: an anchor, and the committed steps after it."""
    async with run.turn:
        done = await run.ledger.register(LEARNER, LEARNER, pid=ask.pid, host=ask.host)
        state = run.state
        state.workers = {
            name: worker for name, worker in state.workers.items() if worker.role != LEARNER
        }
        state.workers[sender.worker] = Worker(
            name=sender.worker,
            role=LEARNER,
            incarnation=done.incarnation,
            seen_at=run.clock(),
            state="starting",
        )
        run.learner_until = run.saving = None
        await collect(run)
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
        steps_max=run.plan.train.steps_total,
    )


async def _usable_anchor(run: RunContext) -> AnchorManifest | None:
    """The newest anchor whose objects are all there."""
    for anchor in reversed(run.state.anchors):
        if all([await run.has_object(digest) for digest in anchor.objects.values()]):
            return anchor
        log.error("anchor %s lacks objects: an older one is used", anchor.name)
    return None


@answers(routes.LEARNER_HEARTBEAT)
async def heartbeat(run: RunContext, sender: Envelope, ask: m.Heartbeat) -> m.HeartbeatAnswer:
    """The learner is alive and does this."""
    worker = record_heartbeat(run, sender, "learner")
    worker.state, worker.step = ask.state, ask.step
    return m.HeartbeatAnswer(stop=run.stop_reason() is not None)


@answers(routes.PUBLISH_INITIAL)
async def publish_initial(run: RunContext, sender: Envelope, ask: m.PublishInitial) -> m.Empty:
    """Version 0 exists: sampling may begin."""
    record_heartbeat(run, sender, "learner")
    async with run.turn:
        await _require_weights(run, ask.version)
        await run.ledger.publish_initial(sender.incarnation, ask.version, ask.chain)
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


async def _require_weights(run: RunContext, version: WeightVersion) -> None:
    who = f"version {version.lineage}/{version.step}"
    await run.require_objects(who, {"weights": version.object})


@answers(routes.REPLAY)
async def replay(run: RunContext, sender: Envelope, ask: m.ReplayRequest) -> m.Batch:
    """The batch of a committed step, as it was handed out then."""
    record_heartbeat(run, sender, "learner")
    return await _recorded_batch(run, ask.step)


async def _recorded_batch(run: RunContext, step: int) -> m.Batch:
    recorded = await run.ledger.batch_of(step)
    if not run.plan.train.offline:
        return build_groups_batch(recorded)
    ordinals = recorded_ordinals(recorded)
    rows = await run.rows.train(ordinals)
    return build_rows_batch(step, ordinals, rows, recorded.cursor)


@answers(routes.FOLLOW)
async def follow(run: RunContext, sender: Envelope, ask: m.Follow) -> m.Followed:  # noqa: ARG001 - who stands by is no worker yet
    """Tell a learner that stands by what was committed since: a newer anchor before the steps that it makes up for."""
    state = run.state
    told = m.Followed(
        lineage=state.lineage, stop=_why_leave(run), initial=state.versions.get((0, 0))
    )
    held = ask.step if ask.lineage == state.lineage else None
    if told.stop is not None:
        return told
    if state.anchors and (held is None or state.anchors[-1].step > held):
        anchor = await _usable_anchor(run)
        if anchor is not None and (held is None or anchor.step > held):
            return msgspec.structs.replace(told, anchor=anchor)
    records = () if held is None or not ask.replays else await run.ledger.records_after(held)
    if not records:
        return told
    batch = await _recorded_batch(run, records[0].step)
    return msgspec.structs.replace(told, record=records[0], batch=batch)


def _why_leave(run: RunContext) -> str | None:
    """Why nobody takes the learner's place any more; None while somebody might have to, be it to save where it stops."""
    reason = run.stop_reason()
    if run.state.outcome is not None:
        return reason
    learners = [one for one in run.state.workers.values() if one.role == LEARNER]
    over = reason is not None or run.is_last_step_done()
    return "the learner has ended" if over and any(map(_has_ended, learners)) else None


def _has_ended(worker: Worker) -> bool:
    return worker.outcome == "succeeded"


@answers(routes.FORK)
async def fork(run: RunContext, sender: Envelope, ask: m.Fork) -> m.Forked:
    """Open a new lineage where replay could not meet the committed digests."""
    record_heartbeat(run, sender, "learner")
    async with run.turn:
        await _require_weights(run, ask.version)
        lineage = await run.ledger.fork(
            sender.incarnation, ask.step, ask.version, ask.chain, ask.reason
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
    known, run.state = run.state, build_state(stored, pools_rewards=run.plan.train.pools_rewards)
    run.waits.awaited = None
    run.state.workers, run.state.stopping = known.workers, known.stopping
    run.state.tokens, run.state.unfinished = known.tokens, known.unfinished


@answers(routes.FAILED)
async def failed(run: RunContext, sender: Envelope, ask: m.Failed) -> m.Empty:
    """The learner says that the run cannot go on. Raises Fenced for one that was replaced."""
    record_heartbeat(run, sender, "learner")
    # This coordinator may be younger than both: the ledger knows who is the newest.
    await run.ledger.worker_ended(LEARNER, sender.incarnation, f"failed: {ask.message}")
    await run.end("Failed", ask.kind, ask.message)
    return m.Empty()


@answers(routes.LEARNER_OUTCOME)
async def outcome(run: RunContext, sender: Envelope, ask: m.Outcome) -> m.Empty:
    """The learner says how it ends. Raises Fenced for one that was replaced: its successor goes on."""
    return await end_worker(run, sender, "learner", ask)
