"""Taking tasks back from a worker, on its behalf: it is gone, or does not answer for them."""

from __future__ import annotations

from collections.abc import Sequence

from rollout.coordinator.context import RunContext
from rollout.ledger.records import AttemptEnd, Lease


async def revoke_leases(run: RunContext, leases: Sequence[Lease], message: str) -> None:
    """End these attempts of one incarnation untried; whatever comes of them later is refused.

    Raises Fenced when a newer process of the worker is registered: then they are free already.
    """
    if not leases:
        return
    ends = [
        AttemptEnd(
            task_id=lease.task.task_id, epoch=lease.epoch, failure="returned", message=message
        )
        for lease in leases
    ]
    verdicts = await run.ledger.submit(leases[0].worker, leases[0].incarnation, ends)
    for lease, verdict in zip(leases, verdicts, strict=True):
        known = run.state.leases.get(lease.task.task_id)
        if verdict.accepted and known is not None and known.epoch == lease.epoch:
            run.state.release(lease.task, verdict.state)
