"""Letting go of memory that was overwritten: as far behind as bodies are let go of, and no version that is read from."""

from __future__ import annotations

from rollout.coordinator.context import RunContext
from rollout.coordinator.rules.retention import plan_body_removal

PRUNINGS_MAX = 16
"""Most transactions of one look: other duties wait for it."""


async def prune_memory(run: RunContext) -> None:
    """Have the ledger let go of what no version needs that is sampled from, evaluated or resumed at."""
    if not run.remembers:
        return  # also where memory was written in an earlier life only: nothing is added to it
    for _ in range(PRUNINGS_MAX):
        async with run.turn:
            step = plan_pruning(run)
            if step is None or step <= run.pruned_step:
                return
            more = await run.ledger.prune_memory(step)
        if not more:
            run.pruned_step = step


def plan_pruning(run: RunContext) -> int | None:
    """The step up to which overwritten entries go; None: all of them stay.

    Rows are pruned by what the live lineage has overwritten: while another's version is played, none goes.
    """
    last = plan_body_removal(run.state.anchors, run.plan.storage.bodies_behind)
    leases = run.state.leases.values()
    if last is None or any(one.version_lineage != run.state.lineage for one in leases):
        return None
    held = [one.version_step for one in leases]
    evaluated = [one.key[3] for one in run.state.pending_evaluations()]
    return min([last, *held, *evaluated])
