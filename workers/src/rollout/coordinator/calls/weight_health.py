"""Versions that the store cannot give: damaged or gone, found out by an actor, stored again by the learner.

The learner holds the weights of the newest version. Until it has stored them whole, nobody is given a task.
"""

from __future__ import annotations

import asyncio
import logging

from rollout.coordinator.calls import actors
from rollout.coordinator.calls.registry import answers
from rollout.coordinator.context import RunContext
from rollout.coordinator.liveness import record_heartbeat
from rollout.errors import CoordinatorError, ObjectDamaged, StoreError
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.envelope import Envelope
from rollout.types import WeightVersion

log = logging.getLogger(__name__)


@answers(routes.ACTIVATION)
async def activation(run: RunContext, sender: Envelope, ask: m.Activation) -> m.Empty:
    """An actor loaded a version, or could not; where it got nothing to load, the store is looked into."""
    answer = await actors.activation(run, sender, ask)
    record_heartbeat(run, sender, "actor").num_rebuilt = ask.num_rebuilt
    if not ask.ok and not ask.digest:
        await _look_into(run, ask.version)
    return answer


async def _look_into(run: RunContext, version: WeightVersion) -> None:
    """Have the newest version stored again where one of its objects is damaged or gone."""
    if version != run.state.version or run.damaged == version:
        return
    wrong = await asyncio.to_thread(_drop_damaged, run, version)
    if wrong and version == run.state.version:
        run.damaged = version
        log.warning("version is to be stored again step=%d objects=%s", version.step, wrong)
        await run.ledger.add_event(
            "version-damaged",
            f"version {version.step} is to be stored again: {', '.join(wrong)} damaged or gone",
            {"lineage": version.lineage, "step": version.step},
        )
        run.wake()


def _drop_damaged(run: RunContext, version: WeightVersion) -> list[str]:
    """The version's objects that are not there, those that were damaged among them. Raises StoreError."""
    for name in version.objects:
        try:
            if run.store.has(name):
                run.store.path(name)
        except ObjectDamaged:
            run.store.delete(name)
        except StoreError as error:
            log.warning("could not look into object=%s reason=%s", name, error)
    return [name for name in version.objects if not run.store.has(name)]


@answers(routes.STORED_AGAIN)
async def stored_again(run: RunContext, sender: Envelope, ask: m.StoredAgain) -> m.Empty:
    """The learner has stored the committed version anew."""
    record_heartbeat(run, sender, "learner")
    if not await run.has_object(ask.version.object):
        raise CoordinatorError(
            f"version {ask.version.step} names object {ask.version.object}, which is not in the store:"
            " upload it first"
        )
    async with run.turn:
        await run.ledger.store_again(sender.incarnation, ask.version)
        state, key = run.state, (ask.version.lineage, ask.version.step)
        if state.version is not None and (state.version.lineage, state.version.step) == key:
            state.version = ask.version
        state.versions[key] = ask.version
        run.damaged = None
    log.info("version stored again step=%d object=%s", ask.version.step, ask.version.object)
    run.wake()
    return m.Empty()
