"""The actors' desk: registering, claiming, heartbeats. What they bring back is taken in ``results``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rollout.coordinator.calls.admission import claimable_end
from rollout.coordinator.calls.claims import build_request, wait_for_work
from rollout.coordinator.calls.partial import choose_young, read_prefixes
from rollout.coordinator.calls.recall import note_progress, recall_tasks
from rollout.coordinator.calls.registry import answers
from rollout.coordinator.context import WAIT_MAX_SECONDS, RunContext
from rollout.coordinator.liveness import is_alive, record_heartbeat
from rollout.coordinator.plan import EvaluationPlan
from rollout.coordinator.revocation import revoke_leases
from rollout.coordinator.state import Worker
from rollout.coordinator.waits import idle_reason
from rollout.data.rows.requests import NUMBER, goes_on, row_sampling, shows_answer
from rollout.ledger.records import Lease
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.envelope import Envelope
from rollout.types import Prefix, Row, SamplingParams
from rollout_api.visible import visible

log = logging.getLogger(__name__)

PLUGINS_SAID_MAX = 2000
"""Characters of what an actor says of its plugins."""
LOOK_SECONDS_MIN = 0.05
"""A waiting claim looks no more often for leases that ran out."""


@answers(routes.REGISTER)
async def register(run: RunContext, sender: Envelope, ask: m.Register) -> m.Registered:
    """A new actor process."""
    done = await run.ledger.register(sender.worker, "actor", pid=ask.pid, host=ask.host)
    run.state.free(done.freed)
    run.state.workers[sender.worker] = Worker(
        name=sender.worker,
        role="actor",
        incarnation=done.incarnation,
        seen_at=run.clock(),
        state="registered",
    )
    log.info("actor registered worker=%s incarnation=%d", sender.worker, done.incarnation)
    run.wake()
    return m.Registered(
        incarnation=done.incarnation,
        lease_seconds=run.plan.lease_seconds,
        heartbeat_seconds=run.plan.heartbeat_seconds,
    )


@answers(routes.CLAIM)
async def claim(run: RunContext, sender: Envelope, ask: m.Claim) -> m.Claimed:
    """Hand out tasks, waiting for some when there are none."""
    deadline = run.clock() + min(ask.wait_seconds, WAIT_MAX_SECONDS)
    worker = record_heartbeat(run, sender, "actor")
    worker.loaded = run.state.versions.get(ask.loaded) if ask.loaded else worker.loaded
    run.waits.idle[sender.worker] = run.clock()
    leases: tuple[Lease, ...] = ()
    while True:
        ticket = run.work.ticket()
        reason = run.stop_reason()
        if reason is None and worker.outcome is not None:
            reason = "this actor has ended"
        if reason is not None:
            return m.Claimed(stop=True, reason=reason)
        tasks = await _build(run, leases) if leases else await _try_claim(run, sender, ask)
        leases = ()
        left = deadline - run.clock()
        if tasks or left <= 0:
            worker.seen_at = run.clock()
            run.waits.actor_seconds += run.clock() - run.waits.idle.pop(sender.worker, run.clock())
            return m.Claimed(tasks=tasks, reason="" if tasks else idle_reason(run))
        # A lease may expire while nobody says anything: look again then, and now and then.
        seconds = min(left, _until_silent(run))
        leases = await wait_for_work(run, sender, ask, ticket, seconds)
        worker.seen_at = run.clock()


def _until_silent(run: RunContext) -> float:
    """Seconds until the next worker that holds something may be given up, within bounds."""
    now, term = run.clock(), run.plan.lease_seconds
    ages = [now - run.state.workers[w].seen_at for w in _holders(run) if w in run.state.workers]
    left = min((term - age for age in ages if age < term), default=term)
    return min(max(left, LOOK_SECONDS_MIN), term / 4)


def _holders(run: RunContext) -> set[str]:
    return {lease.worker for lease in run.state.leases.values()}


async def _try_claim(run: RunContext, sender: Envelope, ask: m.Claim) -> tuple[m.Task, ...]:
    policy = run.state.version
    if policy is None or run.damaged == policy or not _worth_asking(run, sender, ask):
        return ()
    claims = await run.ledger.claim(
        build_request(run, sender, ask, policy, run.state.num_open(), claimable_end(run))
    )
    run.state.free(claims.freed)
    for lease in claims.leases:
        run.state.lease(lease)
    if claims.freed.excluded:
        run.wake()
    return await _build(run, claims.leases)


async def _build(run: RunContext, leases: Sequence[Lease]) -> tuple[m.Task, ...]:
    return await build_tasks(run, await _with_versions(run, leases))


async def _with_versions(run: RunContext, leases: Sequence[Lease]) -> list[Lease]:
    """The leases whose version is kept; others are taken back, to be claimed under the policy of now.

    One that is handed out again may be of a version that was retired since, or of a dead lineage.
    """
    versions, left = run.state.versions, list(leases)
    # Looked at again after each call to the ledger, in which others may be retired; each time fewer are left.
    while gone := [one for one in left if (one.version_lineage, one.version_step) not in versions]:
        left = [one for one in left if one not in gone]
        await revoke_leases(run, gone, "its version is not kept any more")
        log.info("taken back num=%d worker=%s: version retired", len(gone), gone[0].worker)
        run.work.beat()
    return left


def _worth_asking(run: RunContext, sender: Envelope, ask: m.Claim) -> bool:
    """Whether the ledger can have something for this actor: spares it a transaction per wake-up."""
    if run.state.num_open():
        return True
    held, now = set(ask.held), run.clock()
    leases = run.state.leases.values()
    lost = any(one.worker == sender.worker and one.task.task_id not in held for one in leases)
    return lost or any(not is_alive(run, worker, now) for worker in _holders(run))


async def build_tasks(run: RunContext, leases: Sequence[Lease]) -> tuple[m.Task, ...]:
    """Tasks as actors see them, with their rows. Raises DataError."""
    rows = await _rows(run, leases)
    kept = await read_prefixes(run, leases)
    # Reading takes time, in which a version may be retired; nothing is waited for from here on.
    leases = await _with_versions(run, leases)
    young = [choose_young(run, lease, kept.get(lease.task.task_id, {})) for lease in leases]
    run.recalls.tokens_again += sum(
        len(one.prompt_ids) + len(one.token_ids)
        for prefixes in young
        for one in prefixes
        if one.ending is None
    )
    return tuple(
        _build_task(run, lease, rows[lease.task.task_id], prefixes)
        for lease, prefixes in zip(leases, young, strict=True)
    )


async def _rows(run: RunContext, leases: Sequence[Lease]) -> dict[str, Row]:
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


def _build_task(run: RunContext, lease: Lease, row: Row, prefixes: tuple[Prefix, ...]) -> m.Task:
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
        sampling=_sampling(run, lease, row),
        noise_domain=f"eval/{task.evaluation}/{task.step}" if evaluation else "train",
        noise_ordinal=None if run.plan.infer is None else row[NUMBER],
        goes_on=run.plan.infer is not None and goes_on(row),
        shows_answer=run.plan.infer is not None and shows_answer(row),
        evaluation=task.evaluation if evaluation else None,
        split=task.split,
        prefixes=prefixes,
    )


def _sampling(run: RunContext, lease: Lease, row: Row) -> SamplingParams:
    found = find_evaluation(run, lease.task.evaluation, lease.task.split)
    if run.plan.infer is not None and found is not None:
        return row_sampling(row, found.sampling)
    return run.plan.train.sampling if found is None else found.sampling


def find_evaluation(run: RunContext, name: str, split: str) -> EvaluationPlan | None:
    """The plan of an evaluation; None for training, or when it was taken out of the manifest."""
    wanted = (plan for plan in run.plan.evaluations if (plan.name, plan.split) == (name, split))
    return next(wanted, None)


@answers(routes.ACTOR_HEARTBEAT)
async def heartbeat(run: RunContext, sender: Envelope, ask: m.Heartbeat) -> m.HeartbeatAnswer:
    """An actor is alive and still works on these tasks."""
    worker = record_heartbeat(run, sender, "actor")
    worker.state, worker.step = ask.state, ask.step
    note_progress(worker, ask)
    await _note_plugins(run, worker, ask.plugins)
    lost: tuple[str, ...] = ()
    if ask.task_ids:
        lost = await run.ledger.renew(
            sender.worker, sender.incarnation, ask.task_ids, run.plan.lease_seconds
        )
    return m.HeartbeatAnswer(
        lost=lost,
        stop=run.stop_reason() is not None,
        give_back=await recall_tasks(run, worker),
    )


@answers(routes.ACTOR_OUTCOME)
async def outcome(run: RunContext, sender: Envelope, ask: m.Outcome) -> m.Empty:
    """An actor says how it ends. Raises Fenced for one that was replaced: its successor goes on."""
    return await end_worker(run, sender, "actor", ask)


async def _note_plugins(run: RunContext, worker: Worker, text: str) -> None:
    """Write down what an actor says of plugins that have changed, once."""
    said = visible(text[:PLUGINS_SAID_MAX])
    if said and said != worker.plugins:
        worker.plugins = said
        log.warning("worker=%s %s", worker.name, said)
        await run.ledger.add_event("plugins", said, {"worker": worker.name})


async def end_worker(run: RunContext, sender: Envelope, role: m.Role, ask: m.Outcome) -> m.Empty:
    """A worker says how it ends, and holds nothing any more. Raises Fenced."""
    text = "succeeded" if ask.ok else f"failed: {ask.message}"
    name = "learner" if role == "learner" else sender.worker
    await run.ledger.worker_ended(name, sender.incarnation, text)
    worker = record_heartbeat(run, sender, role)
    worker.outcome, worker.state = text, "ended"
    if ask.ok:
        # A claim may have been on its way to it.
        held = [one for one in run.state.leases.values() if one.worker == worker.name]
        mine = [one for one in held if one.incarnation == worker.incarnation]
        await revoke_leases(run, mine, f"{worker.name} has ended")
    run.wake()
    return m.Empty()
