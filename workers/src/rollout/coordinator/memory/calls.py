"""What actors ask of memory."""

from __future__ import annotations

from rollout.coordinator.calls.registry import answers
from rollout.coordinator.context import RunContext
from rollout.errors import CoordinatorError
from rollout.ledger.records import ORDINALS_MAX
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.envelope import Envelope


@answers(routes.READ_MEMORY)
async def read_memory(run: RunContext, sender: Envelope, ask: m.ReadMemory) -> m.MemoryRead:
    """What environments keep, as of a committed version. Raises NoLongerKept, and CoordinatorError for no place of a row."""
    del sender
    numbers = (ask.lineage, ask.step, *ask.after[:3])
    if not all(0 <= number <= ORDINALS_MAX for number in numbers):
        raise CoordinatorError(
            f"memory is read behind {ask.after!r:.200} as of {ask.lineage}/{ask.step}: expected numbers from 0 to"
            f" {ORDINALS_MAX}"
        )
    return m.MemoryRead(part=await run.ledger.memory_of(ask.lineage, ask.step, ask.after))
