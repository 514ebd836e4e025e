"""What counts of work that is not whole: groups that lost samples, and samples that were only begun.

Groups that infrastructure failures reached in part: tried again whole, and used in part in the end.

The survivors of an attempt are no result while another may bring the whole group: the next one draws
the same noise. After the last, the samples that were spared make the group, from the quorum on; the
others are excluded. A try is a failure that an actor reported: actors that were
killed or left say nothing about a sample, and take no try of it.

Beginnings of samples: which are kept, to whom they are given, and whether what comes back goes on from them.

A prefix is kept in the ledger with the return of its task. The next attempt goes on behind it as long as
its oldest token is young enough for the step that will consume the group at the latest.
In Exact nothing is kept: samples start over.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from rollout.codec import decode_prefixes
from rollout.coordinator.context import RunContext
from rollout.coordinator.plan import RunPlan
from rollout.ledger.records import Lease
from rollout.models.experts.routes import goes_on
from rollout.protocol import messages as m
from rollout.types import Prefix, Trajectory, VersionSpan

log = logging.getLogger(__name__)

BySample = dict[int, Prefix]


def without_prefixes(plan: RunPlan, result: m.TaskResult) -> m.TaskResult:
    """The result as far as this run keeps beginnings: of returned tasks, and never in Exact."""
    if not result.prefixes:
        return result
    returned = result.failure is not None and result.failure.kind == "returned"
    return (
        result
        if returned and not plan.numerics.exact
        else msgspec.structs.replace(result, prefixes=())
    )


async def read_prefixes(run: RunContext, leases: Sequence[Lease | None]) -> dict[str, BySample]:
    """What earlier attempts left of these tasks, by task and sample. Raises LedgerError."""
    wanted = [one.task.task_id for one in leases if one is not None and one.prefixed]
    if not wanted:
        return {}
    kept = await run.ledger.prefixes_of(wanted)
    return {
        task_id: {one.sample: one for one in decode_prefixes(body)}
        for task_id, body in kept.items()
    }


def choose_young(run: RunContext, lease: Lease, kept: BySample) -> tuple[Prefix, ...]:
    """The beginnings that may be gone on with: young enough whenever their group is consumed."""
    if lease.task.kind != "train":
        return tuple(kept.values())
    oldest = oldest_step(run, lease.task.ordinal)
    young = tuple(one for one in kept.values() if all(s.step >= oldest for s in one.spans))
    if len(young) < len(kept):
        log.info(
            "beginnings too old task=%s num=%d oldest_step=%d",
            lease.task.task_id,
            len(kept) - len(young),
            oldest,
        )
    return young


def oldest_step(run: RunContext, ordinal: int) -> int:
    """The oldest version whose tokens the group may hold: a step takes at least a batch of groups."""
    state, plan = run.state, run.plan
    steps_ahead = max(0, ordinal - state.cursor.next_ordinal) // plan.train.groups_per_step
    return state.step + steps_ahead - plan.train.staleness_max


def check_prefixes(result: m.TaskResult, lease: Lease, kept: BySample) -> str:
    """What is wrong with the beginnings that a returned task brings; empty when nothing is."""
    samples = [one.sample for one in result.prefixes]
    if samples != [n for n in range(lease.task.num_samples) if n in samples]:
        return f"expected beginnings of samples 0 to {lease.task.num_samples - 1}, in order"
    return next(filter(None, (_check_prefix(p, lease, kept) for p in result.prefixes)), "")


def _check_prefix(prefix: Prefix, lease: Lease, kept: BySample) -> str:
    lengths = {len(prefix.token_ids), len(prefix.logprobs), len(prefix.loss_mask)}
    if len(lengths) != 1 or not prefix.token_ids:
        return f"beginning of sample {prefix.sample}: tokens, logprobs and mask differ in length"
    before = kept.get(prefix.sample)
    if before is not None and _goes_on(prefix.token_ids, prefix.spans, before):
        if not goes_on(prefix, before):
            return f"beginning of sample {prefix.sample}: other experts than its own beginning had"
        return _check_spans(prefix.sample, prefix.spans[len(before.spans) :], lease)
    return _check_spans(prefix.sample, prefix.spans, lease)


def check_versions(made: Trajectory, lease: Lease, kept: BySample) -> str:
    """What is wrong with the versions of a trajectory: all the lease's, but for a prefix it goes on from."""
    if made.branches:
        found = (_check_spans(made.sample, row.spans, lease) for row in made.rows[1:])
        if wrong := next(filter(None, found), ""):
            return wrong
    before = kept.get(made.sample)
    if before is None or not _goes_on(made.token_ids, made.spans, before):
        return _check_spans(made.sample, made.spans, lease)
    if made.actor_logprobs[: len(before.logprobs)] != before.logprobs:
        return f"sample {made.sample}: other logprobs than its beginning was sampled with"
    if not goes_on(made, before):
        return f"sample {made.sample}: other experts than its beginning was sampled with"
    return _check_spans(made.sample, made.spans[len(before.spans) :], lease)


def _goes_on(token_ids: tuple[int, ...], spans: tuple[VersionSpan, ...], before: Prefix) -> bool:
    same = token_ids[: len(before.token_ids)] == before.token_ids
    return same and spans[: len(before.spans)] == before.spans


def _check_spans(sample: int, spans: Sequence[VersionSpan], lease: Lease) -> str:
    wanted = (lease.version_lineage, lease.version_step)
    for span in spans:
        if (span.lineage, span.step) != wanted:
            met = (span.lineage, span.step)
            return f"sample {sample}: sampled from version {met}, task wants {wanted}"
    return ""


def settle(plan: RunPlan, result: m.TaskResult, lease: Lease | None) -> m.TaskResult:
    """What an attempt counts as that lost some of its samples: a failure, or on the last try a result."""
    if result.failure is None or not result.trajectories:
        return result
    if lease is None or lease.epoch != result.epoch or not _is_enough(plan, result, lease):
        return msgspec.structs.replace(result, trajectories=())
    log.warning(
        "group goes on without some of its samples task=%s survivors=%d message=%s",
        result.task_id,
        len(result.trajectories),
        result.failure.message,
    )
    return msgspec.structs.replace(result, failure=None)


def _is_enough(plan: RunPlan, result: m.TaskResult, lease: Lease) -> bool:
    assert result.failure is not None
    return (
        plan.train.samples_min is not None
        and len(result.trajectories) >= plan.train.samples_min
        and lease.failures + 1 >= plan.limits.attempts_max
        and lease.task.kind == "train"
        and result.failure.kind == "infrastructure"
    )
