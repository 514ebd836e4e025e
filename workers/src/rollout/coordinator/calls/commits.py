"""Committing a step: every sample of its window gets a disposition, the next window opens, all at once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from rollout.coordinator.batch_building import ids_of
from rollout.coordinator.calls.admission import (
    end_of_claims,
    plan_admission,
    plan_evaluations,
    view_window,
)
from rollout.coordinator.calls.claims import build_requests, grant, take_waiting
from rollout.coordinator.calls.registry import answers
from rollout.coordinator.context import FINISHED, RunContext
from rollout.coordinator.duties.retention import collect
from rollout.coordinator.liveness import record_heartbeat, working_actors
from rollout.coordinator.memory.writes import rows_of_step
from rollout.coordinator.rules.autoscaling import (
    ScaleState,
    StepShares,
    needed_actors,
    next_pace,
)
from rollout.coordinator.rules.batch_selection import (
    Decision,
    GroupView,
    Ready,
    Window,
    decide_batch,
    expire_old,
)
from rollout.coordinator.rules.drift import judge_drift, judge_retokenised
from rollout.coordinator.rules.learning import observe_signal
from rollout.coordinator.rules.retention import objects_in, objects_of
from rollout.coordinator.state import INFRASTRUCTURE
from rollout.errors import CoordinatorError
from rollout.ledger.records import (
    Admission,
    AnchorManifest,
    Disposition,
    DispositionKind,
    MemoryRow,
    NewTask,
    StepCommit,
)
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.envelope import Envelope

log = logging.getLogger(__name__)


@answers(routes.COMMIT)
async def commit(run: RunContext, sender: Envelope, ask: m.Commit) -> m.Committed:
    """Make one step true. Idempotent; refused when it is not the step that was handed out."""
    record_heartbeat(run, sender, "learner")
    async with run.turn:
        await _require_weights(run, ask)
        if ask.step > run.state.step:
            await _commit_new(run, sender, ask)
        else:
            await run.ledger.commit(_build(run, sender, ask, (), (), Admission()))
    run.wake()
    return m.Committed(accepted=True, stop=_stop(run))


async def _require_weights(run: RunContext, ask: m.Commit) -> None:
    """Every object that the version builds on is there, and stays: retention waits for its turn."""
    if not run.plan.weights_are_read:
        return
    kept = objects_in(run.state.versions.values())
    bases = [base for base in ask.version.bases if base not in kept]
    parts = {f"base {place}": base for place, base in enumerate(bases)}
    await run.require_objects(f"step {ask.step}", {"weights": ask.version.object, **parts})


def _stop(run: RunContext) -> str | None:
    return run.stop_reason() or (FINISHED if run.is_last_step_done() else None)


async def _commit_new(run: RunContext, sender: Envelope, ask: m.Commit) -> None:
    state = run.state
    taken = range(state.cursor.next_ordinal, ask.cursor.next_ordinal)
    dispositions, rows = (
        _offline(ask, taken) if run.plan.train.offline else (_dispose(run, ask), ())
    )
    left = {n: view for n, view in state.views().items() if n not in taken}
    window = expire_old(run.plan, ask.step, left)
    tasks = plan_admission(run.plan, ask.step, ask.cursor, state.next_admitted, window)
    admission = Admission(
        tasks=tasks.tasks,
        next_admitted=tasks.next_admitted,
        exhausted=ask.cursor.exhausted,
        evaluations=plan_evaluations(run.plan, state.lineage, ask.step, ask.cursor),
    )
    retired, run.retired = run.retired, []
    written = [(one.task, one.samples) for n, one in state.groups.items() if n in taken]
    memory = rows_of_step(ask.step, written, dispositions)
    step = _build(run, sender, ask, dispositions, rows, admission, retired, memory)
    end = end_of_claims(run.plan, ask.cursor.next_ordinal, admission.next_admitted, lambda: window)
    waiting = take_waiting(run)
    requests = build_requests(run, waiting, step.version, admission, end)
    claims = await run.ledger.commit(msgspec.structs.replace(step, claims=requests))
    _mirror(run, ask, taken, dispositions)
    run.remembers = run.remembers or bool(memory)
    state.admit(admission)
    grant(run, waiting, claims)
    await _stop_when_adrift(run)


def _build(
    run: RunContext,
    sender: Envelope,
    ask: m.Commit,
    dispositions: tuple[Disposition, ...],
    rows: tuple[NewTask, ...],
    admission: Admission,
    retired: Iterable[tuple[int, int]] = (),
    memory: tuple[MemoryRow, ...] = (),
) -> StepCommit:
    return StepCommit(
        incarnation=sender.incarnation,
        lineage=ask.lineage,
        step=ask.step,
        dispositions=dispositions,
        rows=rows,
        plan=ask.plan,
        version=replace(ask.version, lineage=ask.lineage, step=ask.step),
        chain=ask.chain,
        cursor=ask.cursor,
        metrics={"step": ask.step, "lineage": ask.lineage, **ask.metrics},
        phase_seconds=ask.phase_seconds,
        admission=admission,
        retired=tuple(retired),
        tracked_step=run.state.tracked_step,
        memory=memory,
    )


def _offline(ask: m.Commit, taken: range) -> tuple[tuple[Disposition, ...], tuple[NewTask, ...]]:
    named = {**dict.fromkeys(ask.consumed, ""), **ask.filtered}
    _check_named(ask, {f"r/{ordinal}" for ordinal in taken})
    rows = tuple(
        NewTask(task_id=name, kind="row", ordinal=int(name.removeprefix("r/")), num_samples=1)
        for name in named
    )
    return _named(ask, {name: (name, 0) for name in named}), rows


def _named(ask: m.Commit, samples: Mapping[str, tuple[str, int]]) -> tuple[Disposition, ...]:
    """Dispositions of what the learner names: consumed in its order, then what it filtered."""
    consumed = [
        Disposition(task_id=samples[name][0], sample=samples[name][1], kind="consumed", place=place)
        for place, name in enumerate(ask.consumed)
    ]
    filtered = [
        Disposition(
            task_id=samples[name][0],
            sample=samples[name][1],
            kind="filtered",
            reason=reason,
            place=len(consumed) + place,
        )
        for place, (name, reason) in enumerate(sorted(ask.filtered.items()))
    ]
    return (*consumed, *filtered)


def _dispose(run: RunContext, ask: m.Commit) -> tuple[Disposition, ...]:
    """The disposition of every sample of the window that this step closes. Raises CoordinatorError."""
    decision = _decision(run, ask)
    groups = run.state.groups
    samples = {
        sample.trajectory_id: (groups[ordinal].task.task_id, sample.sample)
        for ordinal in decision.kept
        for sample in groups[ordinal].samples
    }
    _check_named(ask, set(samples))
    rest: list[Disposition] = []
    others: tuple[tuple[DispositionKind, str, tuple[int, ...]], ...] = (
        ("excluded", INFRASTRUCTURE, decision.excluded),
        ("filtered", "zero variance", decision.filtered),
        ("surplus", _why_surplus(run), decision.surplus),
    )
    for kind, reason, ordinals in others:
        for ordinal in ordinals:
            rest.extend(groups[ordinal].dispose(kind, reason))
    for ordinal in decision.expired:
        group = groups[ordinal]
        late = group.state != "done"
        rest.extend(group.dispose("expired", "not back in time" if late else "over maxStaleness"))
    lost = [
        one
        for ordinal in decision.kept
        for one in groups[ordinal].dispose("consumed", "")
        if one.kind == "excluded"
    ]
    return (*_named(ask, samples), *lost, *rest)


def _why_surplus(run: RunContext) -> str:
    return "over-provisioned" if run.plan.train.extra_groups else "dynamic sampling"


def _check_named(ask: m.Commit, batch: set[str]) -> None:
    """Every id of the batch is named exactly once. Raises CoordinatorError."""
    named = [*ask.consumed, *ask.filtered]
    if set(named) != batch or len(named) != len(batch):
        raise CoordinatorError(
            f"step {ask.step} lists {len(ask.consumed)} consumed and {len(ask.filtered)} filtered ids;"
            f" its batch has {len(batch)}, each to be named once"
        )


def _decision(run: RunContext, ask: m.Commit) -> Ready:
    """The batch that was handed out, found again; by its own account where time had a say."""
    cursor, window = run.state.cursor.next_ordinal, view_window(run)
    decision = decide_batch(run.plan, cursor, window)
    if run.plan.train.extra_groups and not _is_of(run, decision, ask):
        # Groups of a lower ordinal have come since: the batch was made without them.
        decision = decide_batch(run.plan, cursor, _without_later(run, window, ask))
    if not isinstance(decision, Ready) or decision.next_ordinal != ask.cursor.next_ordinal:
        raise CoordinatorError(
            f"step {ask.step} was never handed out with cursor {ask.cursor.next_ordinal}:"
            " ask for the batch again"
        )
    return decision


def _without_later(run: RunContext, window: Window, ask: m.Commit) -> Window:
    """The window without the results of groups that a commit does not name: they are surplus."""
    named, groups = {*ask.consumed, *ask.filtered}, run.state.groups
    later = (
        ordinal
        for ordinal in range(run.state.cursor.next_ordinal, ask.cursor.next_ordinal)
        if ordinal in groups and window[ordinal].state not in {"excluded", "expired"}
    )
    left_out = {n: GroupView(state="surplus") for n in later if not named & set(ids_of(groups[n]))}
    return {**window, **left_out}


def _is_of(run: RunContext, decision: Decision, ask: m.Commit) -> bool:
    """Whether a commit names a decision's batch."""
    if not isinstance(decision, Ready):
        return False
    batch = {name for ordinal in decision.kept for name in ids_of(run.state.groups[ordinal])}
    return batch == {*ask.consumed, *ask.filtered}


def _mirror(
    run: RunContext, ask: m.Commit, taken: range, dispositions: tuple[Disposition, ...]
) -> None:
    state, now = run.state, run.clock()
    groups = state.take_groups(taken)
    rewards = [group.view().rewards for group in groups]
    signal = observe_signal(rewards, pooled=run.plan.train.pools_rewards)
    lengths = {(g.task.task_id, s.sample): s.num_tokens for g in groups for s in g.samples}
    for one in dispositions:
        state.dispositions[one.kind] += 1
        state.tokens[one.kind] += lengths.get((one.task_id, one.sample), 0)
        state.unfinished[one.kind] += (one.task_id, one.sample) not in lengths
    state.step, state.chain, state.cursor = ask.step, ask.chain, ask.cursor
    state.version = replace(ask.version, lineage=ask.lineage, step=ask.step)
    state.versions[(ask.lineage, ask.step)] = state.version
    state.phase_seconds = ask.phase_seconds
    state.remember_step({"step": ask.step, "lineage": ask.lineage, **ask.metrics}, signal)
    if state.step_ended_at is not None:
        state.step_seconds = now - state.step_ended_at
        _share_waits(run, state.step_seconds)
    state.step_ended_at = now
    run.rows.forget_below(ask.cursor.next_ordinal)
    log.debug("step committed lineage=%d step=%d chain=%s", ask.lineage, ask.step, ask.chain)


async def _stop_when_adrift(run: RunContext) -> None:
    """Save and stop where the manifest asks for it; the step that showed it is committed."""
    recent, plan = run.state.recent, run.plan
    for drift in (
        judge_drift(recent, plan.limits.drift),
        judge_retokenised(recent, plan.limits.retokenised),
    ):
        if drift.level == "stop":
            await run.stop(drift.message)


def _share_waits(run: RunContext, seconds: float) -> None:
    """Which share of the step each side waited for the other."""
    waits, now = run.waits, run.clock()
    idle = waits.actor_seconds + sum(now - since for since in waits.idle.values())
    actors = max(1, len(working_actors(run)))
    waits.shares = (
        min(1.0, waits.learner_seconds / max(seconds, 1e-9)),
        min(1.0, idle / actors / max(seconds, 1e-9)),
    )
    waits.learner_seconds = waits.actor_seconds = 0.0
    waits.idle = dict.fromkeys(waits.idle, now)
    learner_waits, actors_wait = waits.shares
    measured = StepShares(
        num_actors=len(working_actors(run)), learner_waits=learner_waits, actors_wait=actors_wait
    )
    waits.actors_needed = needed_actors(measured) if measured.num_actors else None
    _keep_pace(run, measured)


def _keep_pace(run: RunContext, measured: StepShares) -> None:
    """Let the number of actors follow, where the manifest asks for it."""
    if run.plan.actors is None:
        return
    pace = run.pace or ScaleState(wanted=run.plan.actors.start)
    run.pace = next_pace(pace, run.plan.actors, measured)
    if run.pace.wanted != pace.wanted:
        log.info("actors wanted=%d before=%d step=%d", run.pace.wanted, pace.wanted, run.state.step)


@answers(routes.ANCHOR)
async def save_anchor(run: RunContext, sender: Envelope, ask: m.AnchorSaved) -> m.Empty:
    """A train state is durable; older ones may go."""
    record_heartbeat(run, sender, "learner")
    manifest: AnchorManifest = ask.manifest
    async with run.turn:
        await run.require_objects(f"anchor {manifest.name}", manifest.objects)
        await run.ledger.save_anchor(sender.incarnation, manifest)
        newest = _is_newest(run, manifest)
        same = (manifest.lineage, manifest.step)
        kept = [a for a in run.state.anchors if (a.lineage, a.step) != same]
        run.state.anchors = [*kept, manifest]
        if run.guard is not None:
            run.guard.note(objects_of([manifest]))
        if newest:
            await collect(run)
    log.info("anchor saved name=%s step=%d", manifest.name, manifest.step)
    run.wake()
    return m.Empty()


def _is_newest(run: RunContext, manifest: AnchorManifest) -> bool:
    """Whether the learner waits for this answer; after a late copy of the call it may be storing the next anchor."""
    here = (manifest.step, manifest.lineage)
    older = all((known.step, known.lineage) <= here for known in run.state.anchors)
    return older and manifest not in run.state.anchors
