"""What actors bring back: checked, made durable, mirrored in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from rollout.codec import (
    compress_body,
    encode_prefixes,
    encode_trajectories,
    name_trajectory,
)
from rollout.coordinator.calls.admission import admit_more
from rollout.coordinator.calls.partial import (
    BySample,
    check_prefixes,
    check_versions,
    read_prefixes,
    settle,
    without_prefixes,
)
from rollout.coordinator.calls.registry import answers
from rollout.coordinator.context import RunContext
from rollout.coordinator.liveness import record_heartbeat
from rollout.coordinator.memory.writes import check_writes
from rollout.coordinator.plan import RunPlan, TrainPlan
from rollout.coordinator.rules.branches import check_branches
from rollout.coordinator.rules.numbers import (
    are_usable,
    check_prefix_numbers,
    find_wrong_numbers,
)
from rollout.coordinator.state import find_oldest_step
from rollout.ledger.records import AttemptEnd, Lease, SampleRow, Verdict
from rollout.models.experts.routes import count_route_bytes, find_wrong_routes
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.envelope import Envelope
from rollout.turns import further_rows
from rollout.types import Trajectory

log = logging.getLogger(__name__)

PLUGINS_MAX = 256
"""Of a run: more than a manifest has places for."""
DATA_FAILURES_MAX = 2
"""User code that fails twice on the same task is broken, not unlucky."""

OFF_LOOP_TOKENS, OFF_LOOP_ROUTE_BYTES = 32_768, 1 << 20
"""Results larger than this are looked at, named and compressed in a thread, so that heartbeats keep flowing."""


@answers(routes.SUBMIT)
async def submit(run: RunContext, sender: Envelope, ask: m.Submit) -> m.Submitted:
    """Make results durable, each on its own merits."""
    record_heartbeat(run, sender, "actor")
    leases = [run.state.leases.get(result.task_id) for result in ask.results]
    kept = await read_prefixes(run, leases)
    results = [
        settle(run.plan, without_prefixes(run.plan, r), lease)
        for r, lease in zip(ask.results, leases, strict=True)
    ]
    usable = are_usable([one for result in ask.results for one in result.trajectories])
    refusals = [
        ("" if usable else find_wrong_numbers(result.trajectories))
        or _check(result, lease, kept.get(result.task_id, {}), run.plan)
        for result, lease in zip(ask.results, leases, strict=True)
    ]
    refusals = await _refuse_routes(run.plan.train, ask.results, leases, refusals)
    good = [r for r, refusal in zip(results, refusals, strict=True) if not refusal]
    ends = await _build_ends(good)
    attempts = [end.attempt for end in ends]
    verdicts = await run.ledger.submit(sender.worker, sender.incarnation, attempts)
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


async def _refuse_routes(
    plan: TrainPlan,
    results: Sequence[m.TaskResult],
    leases: Sequence[Lease | None],
    refusals: Sequence[str],
) -> list[str]:
    """The refusals, with those for routes that no learner can replay: of results that nothing else is wrong with."""

    def look() -> list[str]:
        return [
            refusal or ("" if lease is None else _check_routes(plan, result, lease))
            for result, lease, refusal in zip(results, leases, refusals, strict=True)
        ]

    made = [one for result in results for one in (*result.trajectories, *result.prefixes)]
    if count_route_bytes(made) > OFF_LOOP_ROUTE_BYTES:
        return await asyncio.to_thread(look)
    return look()


def _check_routes(plan: TrainPlan, result: m.TaskResult, lease: Lease) -> str:
    shape = plan.experts if lease.task.kind == "train" else None
    return find_wrong_routes((*result.trajectories, *result.prefixes), shape)


def _check(result: m.TaskResult, lease: Lease | None, kept: BySample, plan: RunPlan) -> str:
    """What is wrong with a result's form; empty when nothing is, or when the ledger must judge it."""
    if wrong := next(filter(None, map(check_prefix_numbers, result.prefixes)), ""):
        return wrong
    if lease is None or lease.epoch != result.epoch:
        return ""
    made, whole = [t.sample for t in result.trajectories], range(lease.task.num_samples)
    if result.failure is None and made != list(whole):
        return f"expected samples 0 to {lease.task.num_samples - 1}, in order"
    if result.failure is not None and made != [n for n in whole if n in made]:
        return f"expected some of samples 0 to {lease.task.num_samples - 1}, in order"
    wrong = (
        _check_one(t, lease, kept)
        or ("" if t.branches is UNSET else check_branches(t, lease.task, plan))
        or ("" if t.memory is UNSET else check_writes(t, lease.task))
        for t in result.trajectories
    )
    return next(filter(None, wrong), "") or check_prefixes(result, lease, kept)


def _check_one(trajectory: Trajectory, lease: Lease, kept: BySample) -> str:
    lengths = {
        len(trajectory.token_ids),
        len(trajectory.actor_logprobs),
        len(trajectory.loss_mask),
    }
    if len(lengths) != 1:
        return f"sample {trajectory.sample}: tokens, logprobs and mask differ in length"
    if not isinstance(trajectory.plugins, UnsetType) and len(trajectory.plugins) > PLUGINS_MAX:
        return f"sample {trajectory.sample}: expected at most {PLUGINS_MAX} plugins"
    if trajectory.ordinal != lease.task.ordinal:
        return f"sample {trajectory.sample}: ordinal {trajectory.ordinal} is not the task's"
    return check_versions(trajectory, lease, kept)


@dataclass(frozen=True, slots=True)
class _End:
    """How an attempt ends, and its trajectories in msgpack: written once for the ledger and the learner."""

    attempt: AttemptEnd
    packed: bytes = b""


async def _build_ends(results: Sequence[m.TaskResult]) -> tuple[_End, ...]:
    made = [one for result in results for one in (*result.trajectories, *result.prefixes)]
    tokens = sum(len(row.token_ids) + len(row.prompt_ids) for row in (*made, *further_rows(made)))
    if tokens > OFF_LOOP_TOKENS or count_route_bytes(made) > OFF_LOOP_ROUTE_BYTES:
        return await asyncio.to_thread(lambda: tuple(map(_build_end, results)))
    return tuple(map(_build_end, results))


def _build_end(result: m.TaskResult) -> _End:
    if result.failure is not None:
        return _End(
            AttemptEnd(
                task_id=result.task_id,
                epoch=result.epoch,
                failure=result.failure.kind,
                message=result.failure.message,
                prefixes=encode_prefixes(result.prefixes),
            )
        )
    packed = encode_trajectories(result.trajectories)
    attempt = AttemptEnd(
        task_id=result.task_id,
        epoch=result.epoch,
        samples=tuple(map(_sample_row, result.trajectories)),
        body=compress_body(packed),
    )
    return _End(attempt, packed)


def _sample_row(trajectory: Trajectory) -> SampleRow:
    return SampleRow(
        sample=trajectory.sample,
        trajectory_id=name_trajectory(trajectory),
        reward=float(trajectory.reward),
        num_tokens=trajectory.num_tokens if trajectory.branches else len(trajectory.token_ids),
        ending=trajectory.ending,
        writes=trajectory.memory or (),
    )


def _mirror(run: RunContext, result: m.TaskResult, end: _End, verdict: Verdict) -> None:
    samples = end.attempt.samples
    lease = run.state.leases.get(result.task_id)
    if lease is None or lease.epoch != result.epoch:
        return  # a repeated result: mirrored the first time
    if verdict.state == "done":
        oldest = find_oldest_step(result.trajectories)
        run.state.finish_task(lease.task, samples, end.packed, oldest)
        if lease.task.kind == "train":
            run.recalls.lengths.add(one.num_tokens for one in samples)
    else:
        run.state.release(lease.task, verdict.state)


async def _after_results(
    run: RunContext, results: Sequence[m.TaskResult], verdicts: Sequence[Verdict]
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
    if all(result.failure is None for result in results):
        run.wake_for_results()
    else:
        run.wake()
