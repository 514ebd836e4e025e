"""Keeps the tails of pods that ended badly where the run's other records are: an object, and a word in the ledger.

It never stands in the way of the run: what cannot be kept is logged and given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from rollout.coordinator.calls.registry import answers
from rollout.coordinator.context import RunContext
from rollout.coordinator.rules import evidence as rules
from rollout.errors import LedgerError, LedgerSuperseded, StoreError
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.envelope import Envelope

log = logging.getLogger(__name__)

KIND = "evidence"
"""Of its events in the ledger."""


@answers(routes.ACTOR_EVIDENCE)
async def take_actors(run: RunContext, sender: Envelope, ask: m.Evidence) -> m.Empty:
    """The tail of an actor's pod."""
    return await _take(run, ("actor", sender.worker), ask)


@answers(routes.LEARNER_EVIDENCE)
async def take_learners(run: RunContext, sender: Envelope, ask: m.Evidence) -> m.Empty:
    """The tail of a learner's pod."""
    return await _take(run, ("learner", sender.worker), ask)


async def keep_rest(run: RunContext) -> None:
    """Keep what is held of pods that will not be heard again, before the ledger is closed."""
    await _keep(run, rules.settle(run.evidence, run.clock()))


async def _take(run: RunContext, sender: rules.Sender, ask: m.Evidence) -> m.Empty:
    stuck = run.stuck is not None
    await _keep(run, rules.take(run.evidence, sender, ask, run.clock(), stuck=stuck))
    return m.Empty()


async def _keep(run: RunContext, found: Sequence[rules.Kept]) -> None:
    for one in found:
        try:
            await _write(run, one)
        except LedgerSuperseded:
            raise
        except (LedgerError, StoreError) as error:
            run.evidence.num_dropped += 1
            log.warning("evidence is not kept worker=%s error=%s", one.sender[1], error)


async def _write(run: RunContext, one: rules.Kept) -> None:
    content = one.tail.text.encode(errors="replace")
    name = await asyncio.to_thread(run.store.put, content)
    data = {"object": name, "moment": one.tail.moment, "bytes": len(content)}
    await run.ledger.add_event(KIND, rules.name_of(one.sender), data)
    log.info("evidence kept worker=%s moment=%s", one.sender[1], one.tail.moment)
