"""Groups that infrastructure failures reached in part: tried again whole, and used in part in the end.

The survivors of an attempt are no result while another may bring the whole group: the next one draws
the same noise. After the last, the samples that were spared make the group, from the quorum on; the
others are excluded (protocol section 5). A try is a failure that an actor reported: actors that were
killed or left say nothing about a sample, and take no try of it.
"""

from __future__ import annotations

import logging

import msgspec

from rollout.coordinator.plan import RunPlan
from rollout.ledger.records import Lease
from rollout.protocol import messages as m

log = logging.getLogger(__name__)


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
        plan.samples_min is not None
        and len(result.trajectories) >= plan.samples_min
        and lease.failures + 1 >= plan.attempts_max
        and lease.task.kind == "train"
        and result.failure.kind == "infrastructure"
    )
