"""The actors' desk: registering, claiming, heartbeats and results."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence

from rollout.codec import encode_body, encode_prefixes, name_trajectory
from rollout.coordinator import messages as m
from rollout.coordinator.plan import EvaluationPlan
from rollout.coordinator.prefixes import (
    BySample,
    check_prefixes,
    check_versions,
    choose_young,
    read_prefixes,
    without_prefixes,
)
from rollout.coordinator.quarantine import describe_stall, note_activation
from rollout.coordinator.returning import take_back
from rollout.coordinator.run import WAIT_MAX_SECONDS, Run, wait_for
from rollout.coordinator.state import Worker
from rollout.coordinator.stragglers import ask_back, note_progress
from rollout.coordinator.survivors import settle
from rollout.coordinator.windows import admit_more
from rollout.errors import Fenced
from rollout.ledger.records import AttemptEnd, ClaimRequest, Lease, SampleRow, Verdict
from rollout.types import Prefix, Row, SamplingParams, Trajectory
from rollout_api.conditions import Reason

log = logging.getLogger(__name__)

LOOK_SECONDS_MIN = 0.05
"""A waiting claim looks no more often for leases that ran out."""

DATA_FAILURES_MAX = 2
"""User code that fails twice on the same task is broken, not unlucky."""

OFF_LOOP_TRAJECTORIES = 64
OFF_LOOP_TOKENS = 32_768
"""Results larger than this are named and compressed in a thread, so that heartbeats keep flowing."""


async def register(run: Run, ask: m.Register) -> m.Registered:
    """A new actor process."""
    done = await run.ledger.register(ask.worker, "actor", pid=ask.pid, host=ask.host)
    run.state.free(done.freed)
    run.state.workers[ask.worker] = Worker(
        name=ask.worker,
        role="actor",
        incarnation=done.incarnation,
        seen_at=run.clock(),
        state="registered",
    )
    log.info("actor registered worker=%s incarnation=%d", ask.worker, done.incarnation)
    run.wake()
    return m.Registered(
        incarnation=done.incarnation,
        lease_seconds=run.plan.lease_seconds,
        heartbeat_seconds=run.plan.heartbeat_seconds,
    )


def hear(run: Run, worker: str, role: str, incarnation: int) -> Worker:
    """Note that a worker is alive. Raises Fenced when a newer process of it is known."""
    known = run.state.workers.get(worker)
    if known is None:
        # This coordinator is younger than the worker; the ledger fences what matters.
        known = Worker(name=worker, role=role, incarnation=incarnation, seen_at=run.clock())
        run.state.workers[worker] = known
    if incarnation < known.incarnation:
        raise Fenced(
            f"{worker} is now at incarnation {known.incarnation}, this call came from {incarnation}"
        )
    known.incarnation, known.seen_at = incarnation, run.clock()
    return known


async def claim(run: Run, ask: m.Claim) -> m.Claimed:
    """Hand out tasks, waiting for some when there are none."""
    deadline = run.clock() + min(ask.wait_seconds, WAIT_MAX_SECONDS)
    worker = hear(run, ask.worker, "actor", ask.incarnation)
    worker.loaded = run.state.versions.get(ask.loaded) if ask.loaded else worker.loaded
    run.waits.idle[ask.worker] = run.clock()
    while True:
        ticket = run.work.ticket()
        reason = run.stop_reason()
        if reason is None and worker.outcome is not None:
            reason = "this actor has ended"
        if reason is not None:
            return m.Claimed(stop=True, reason=reason)
        tasks = await _try_claim(run, ask)
        left = deadline - run.clock()
        if tasks or left <= 0:
            worker.seen_at = run.clock()
            run.waits.actor_seconds += run.clock() - run.waits.idle.pop(ask.worker, run.clock())
            return m.Claimed(tasks=tasks, reason="" if tasks else idle_reason(run))
        # A lease may expire while nobody says anything: look again then, and now and then.
        await wait_for(ticket, min(left, _until_silent(run)))
        worker.seen_at = run.clock()


def _until_silent(run: Run) -> float:
    """Seconds until the next worker that holds something may be given up, within bounds."""
    now, term = run.clock(), run.plan.lease_seconds
    ages = [now - run.state.workers[w].seen_at for w in _holders(run) if w in run.state.workers]
    left = min((term - age for age in ages if age < term), default=term)
    return min(max(left, LOOK_SECONDS_MIN), term / 4)


def _holders(run: Run) -> set[str]:
    return {lease.worker for lease in run.state.leases.values()}


async def _try_claim(run: Run, ask: m.Claim) -> tuple[m.Task, ...]:
    policy = run.state.version
    if policy is None or run.damaged == policy or not _worth_asking(run, ask):
        return ()
    claims = await run.ledger.claim(
        ClaimRequest(
            worker=ask.worker,
            incarnation=ask.incarnation,
            tasks_max=_fair_share(run, ask.tasks_max),
            held=ask.held,
            lease_seconds=run.plan.lease_seconds,
            lineage=policy.lineage,
            step=policy.step,
        )
    )
    run.state.free(claims.freed)
    for lease in claims.leases:
        run.state.lease(lease)
    if claims.freed.excluded:
        run.wake()
    return await build_tasks(run, claims.leases)


def _worth_asking(run: Run, ask: m.Claim) -> bool:
    """Whether the ledger can have something for this actor: spares it a transaction per wake-up."""
    if run.state.num_open():
        return True
    held, now = set(ask.held), run.clock()
    return any(
        (lease.worker == ask.worker and lease.task.task_id not in held)
        or not is_alive(run, lease.worker, now)
        for lease in run.state.leases.values()
    )


def is_alive(run: Run, worker: str, now: float) -> bool:
    """Whether the worker was heard within one lease term."""
    known = run.state.workers.get(worker)
    seen = run.started_at if known is None else known.seen_at
    return now - seen < run.plan.lease_seconds


def _fair_share(run: Run, tasks_max: int) -> int:
    """What one actor gets, so that the first to ask does not leave the others idle."""
    alive = len(working_actors(run))
    share = math.ceil(run.state.num_open() / max(1, alive))
    return max(1, min(tasks_max, share)) if alive > 1 else max(1, tasks_max)


def working_actors(run: Run) -> list[Worker]:
    """Actors that were heard within one lease term and have not ended."""
    now = run.clock()
    return [
        worker
        for worker in run.state.workers.values()
        if worker.role == "actor" and worker.outcome is None and is_alive(run, worker.name, now)
    ]


def idle_reason(run: Run) -> str:
    """Why there is no work for an actor just now."""
    if run.state.version is None:
        return "waiting for the learner to publish the first version"
    if run.damaged == run.state.version:
        return f"waiting for the learner to store version {run.state.step} again: it was damaged"
    return f"every task of step {run.state.step + 1} is taken: waiting for the learner"


async def build_tasks(run: Run, leases: Sequence[Lease]) -> tuple[m.Task, ...]:
    """Tasks as actors see them, with their rows. Raises DataError."""
    rows = await _rows(run, leases)
    kept = await read_prefixes(run, leases)
    young = [choose_young(run, lease, kept.get(lease.task.task_id, {})) for lease in leases]
    run.moves.tokens_again += sum(
        len(one.prompt_ids) + len(one.token_ids)
        for prefixes in young
        for one in prefixes
        if one.ending is None
    )
    return tuple(
        _build_task(run, lease, rows[lease.task.task_id], prefixes)
        for lease, prefixes in zip(leases, young, strict=True)
    )


async def _rows(run: Run, leases: Sequence[Lease]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    by_source: dict[tuple[str, str], list[Lease]] = {}
    for lease in leases:
        by_source.setdefault((lease.task.evaluation, lease.task.split), []).append(lease)
    for (name, split), members in by_source.items():
        positions = [lease.task.ordinal for lease in members]
        if members[0].task.kind == "eval":
            rows = await run.rows.evaluation(name, split, positions)
        else:
            rows = await run.rows.train(positions)
        found.update((lease.task.task_id, row) for lease, row in zip(members, rows, strict=True))
    return found


def _build_task(run: Run, lease: Lease, row: Row, prefixes: tuple[Prefix, ...]) -> m.Task:
    task = lease.task
    version = run.state.versions[(lease.version_lineage, lease.version_step)]
    evaluation = task.kind == "eval"
    return m.Task(
        task_id=task.task_id,
        kind="eval" if evaluation else "train",
        ordinal=task.ordinal,
        row=row,
        num_samples=task.num_samples,
        attempt=lease.attempt,
        epoch=lease.epoch,
        lease_seconds=run.plan.lease_seconds,
        version=version,
        sampling=_sampling(run, lease),
        noise_domain=f"eval/{task.evaluation}/{task.step}" if evaluation else "train",
        evaluation=task.evaluation if evaluation else None,
        split=task.split,
        prefixes=prefixes,
    )


def _sampling(run: Run, lease: Lease) -> SamplingParams:
    found = find_evaluation(run, lease.task.evaluation, lease.task.split)
    return run.plan.sampling if found is None else found.sampling


def find_evaluation(run: Run, name: str, split: str) -> EvaluationPlan | None:
    """The plan of an evaluation; None for training, or when it was taken out of the manifest."""
    wanted = (plan for plan in run.plan.evaluations if (plan.name, plan.split) == (name, split))
    return next(wanted, None)


async def heartbeat(run: Run, ask: m.Heartbeat) -> m.HeartbeatAnswer:
    """An actor is alive and still works on these tasks."""
    worker = hear(run, ask.worker, "actor", ask.incarnation)
    worker.state, worker.step = ask.state, ask.step
    note_progress(worker, ask)
    lost: tuple[str, ...] = ()
    if ask.task_ids:
        lost = await run.ledger.renew(
            ask.worker, ask.incarnation, ask.task_ids, run.plan.lease_seconds
        )
    return m.HeartbeatAnswer(
        lost=lost,
        stop=run.stop_reason() is not None,
        give_back=await ask_back(run, worker),
    )


async def submit(run: Run, ask: m.Submit) -> m.Submitted:
    """Make results durable, each on its own merits."""
    hear(run, ask.worker, "actor", ask.incarnation)
    leases = [run.state.leases.get(result.task_id) for result in ask.results]
    kept = await read_prefixes(run, leases)
    results = [
        settle(run.plan, without_prefixes(run.plan, r), lease)
        for r, lease in zip(ask.results, leases, strict=True)
    ]
    refusals = [
        _check(result, lease, kept.get(result.task_id, {}))
        for result, lease in zip(ask.results, leases, strict=True)
    ]
    good = [r for r, refusal in zip(results, refusals, strict=True) if not refusal]
    ends = await _build_ends(good)
    verdicts = await run.ledger.submit(ask.worker, ask.incarnation, ends)
    by_task = {}
    for result, end, verdict in zip(good, ends, verdicts, strict=True):
        by_task[result.task_id] = verdict
        if verdict.accepted:
            _mirror(run, result, end, verdict)
    await _after_results(run, good, verdicts)
    judged = [
        Verdict(accepted=False, reason=refusal, state="open") if refusal else by_task[r.task_id]
        for r, refusal in zip(results, refusals, strict=True)
    ]
    return m.Submitted(
        accepted=tuple(verdict.accepted for verdict in judged),
        reasons=tuple(verdict.reason for verdict in judged),
    )


def _check(result: m.TaskResult, lease: Lease | None, kept: BySample) -> str:
    """What is wrong with a result's form; empty when nothing is, or when the ledger must judge it."""
    if lease is None or lease.epoch != result.epoch:
        return ""
    made, whole = [t.sample for t in result.trajectories], range(lease.task.num_samples)
    if result.failure is None and made != list(whole):
        return f"expected samples 0 to {lease.task.num_samples - 1}, in order"
    if result.failure is not None and made != [n for n in whole if n in made]:
        return f"expected some of samples 0 to {lease.task.num_samples - 1}, in order"
    wrong = (_check_one(t, lease, kept) for t in result.trajectories)
    return next(filter(None, wrong), "") or check_prefixes(result, lease, kept)


def _check_one(trajectory: Trajectory, lease: Lease, kept: BySample) -> str:
    lengths = {
        len(trajectory.token_ids),
        len(trajectory.actor_logprobs),
        len(trajectory.loss_mask),
    }
    if len(lengths) != 1:
        return f"sample {trajectory.sample}: tokens, logprobs and mask differ in length"
    if trajectory.ordinal != lease.task.ordinal:
        return f"sample {trajectory.sample}: ordinal {trajectory.ordinal} is not the task's"
    if not all(map(math.isfinite, (trajectory.reward, *trajectory.rewards.values()))):
        return f"sample {trajectory.sample}: reward is not a finite number"
    return check_versions(trajectory, lease, kept)


async def _build_ends(results: Sequence[m.TaskResult]) -> tuple[AttemptEnd, ...]:
    made = [one for result in results for one in (*result.trajectories, *result.prefixes)]
    tokens = sum(len(one.token_ids) + len(one.prompt_ids) for one in made)
    if tokens > OFF_LOOP_TOKENS:
        return await asyncio.to_thread(lambda: tuple(map(_build_end, results)))
    return tuple(map(_build_end, results))


def _build_end(result: m.TaskResult) -> AttemptEnd:
    if result.failure is not None:
        return AttemptEnd(
            task_id=result.task_id,
            epoch=result.epoch,
            failure=result.failure.kind,
            message=result.failure.message,
            prefixes=encode_prefixes(result.prefixes),
        )
    return AttemptEnd(
        task_id=result.task_id,
        epoch=result.epoch,
        samples=tuple(map(_sample_row, result.trajectories)),
        body=encode_body(result.trajectories),
    )


def _sample_row(trajectory: Trajectory) -> SampleRow:
    return SampleRow(
        sample=trajectory.sample,
        trajectory_id=name_trajectory(trajectory),
        reward=float(trajectory.reward),
        num_tokens=len(trajectory.token_ids),
        ending=trajectory.ending,
    )


def _mirror(run: Run, result: m.TaskResult, end: AttemptEnd, verdict: Verdict) -> None:
    lease = run.state.leases.get(result.task_id)
    if lease is None or lease.epoch != result.epoch:
        return  # a repeated result: mirrored the first time
    if verdict.state == "done":
        run.state.finish_task(lease.task, end.samples, result.trajectories)
        if lease.task.kind == "train":
            run.moves.lengths.add(one.num_tokens for one in end.samples)
    else:
        run.state.release(lease.task, verdict.state)


async def _after_results(
    run: Run, results: Sequence[m.TaskResult], verdicts: Sequence[Verdict]
) -> None:
    for result, verdict in zip(results, verdicts, strict=True):
        if result.failure is None:
            continue
        log.log(
            logging.INFO if result.failure.kind == "returned" else logging.WARNING,
            "attempt failed task=%s kind=%s state=%s message=%s",
            result.task_id,
            result.failure.kind,
            verdict.state,
            result.failure.message,
        )
        if verdict.data_failures >= DATA_FAILURES_MAX:
            await run.end("Failed", "RewardError", result.failure.message)
    await admit_more(run)
    run.wake()


async def activation(run: Run, ask: m.Activation) -> m.Empty:
    """An actor loaded a version, or could not; a wrong digest is written down for good."""
    worker = hear(run, ask.worker, "actor", ask.incarnation)
    note_activation(worker, ask, run.clock())
    if ask.ok:
        return m.Empty()
    await run.ledger.add_event(
        "activation-failed",
        f"{ask.worker}: {worker.trouble}",
        {"lineage": ask.version.lineage, "step": ask.version.step, "digest": ask.digest},
    )
    now, patience = run.clock(), run.plan.lease_seconds
    if stall := describe_stall(run.state.workers.values(), now, patience):
        await run.end("Failed", Reason.ACTORS_QUARANTINED.value, stall)
    return m.Empty()


async def outcome(run: Run, ask: m.Outcome) -> m.Empty:
    """A worker says how it ends. Raises Fenced for one that was replaced: its successor goes on."""
    text = "succeeded" if ask.ok else f"failed: {ask.message}"
    name = "learner" if ask.role == "learner" else ask.worker
    await run.ledger.worker_ended(name, ask.incarnation, text)
    worker = hear(run, ask.worker, ask.role, ask.incarnation)
    worker.outcome, worker.state = text, "ended"
    if ask.ok:
        # A claim may have been on its way to it.
        held = [one for one in run.state.leases.values() if one.worker == worker.name]
        mine = [one for one in held if one.incarnation == worker.incarnation]
        await take_back(run, mine, f"{worker.name} has ended")
    run.wake()
    return m.Empty()
