"""Weights that are not what they are named: in an actor's engine, or in the store.

Actors whose engines do not hold the weights that they were told to hold.

One wrong digest sends an actor back to a dense base, and nothing is sampled meanwhile. An actor that stays
wrong is set aside, the others go on without it; when more than half are, the fault is no actor's and the run
ends, with all that was committed.

Versions that the store cannot give: damaged or gone, found out by an actor, stored again by the learner.

The learner holds the weights of the newest version. Until it has stored them whole, nobody is given a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from rollout.coordinator.calls.registry import answers
from rollout.coordinator.context import RunContext
from rollout.coordinator.liveness import record_heartbeat
from rollout.coordinator.state import LEARNER, Worker
from rollout.errors import ObjectDamaged, StoreError
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.envelope import Envelope
from rollout.types import WeightVersion
from rollout_api.conditions import Reason

log = logging.getLogger(__name__)

WRONG_MAX = 3
"""Wrong digests in a row that quarantine an actor: the last loads were from a dense base."""


@answers(routes.ACTIVATION)
async def activation(run: RunContext, sender: Envelope, ask: m.Activation) -> m.Empty:
    """An actor loaded a version, or could not; where it got nothing to load, the store is looked into."""
    worker = await _take_activation(run, sender, ask)
    worker.num_rebuilt = ask.num_rebuilt
    if not ask.ok and not ask.digest:
        await _look_into(run, ask.version)
    return m.Empty()


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
    async with run.turn:
        await run.require_objects(
            f"version {ask.version.step} again", {"weights": ask.version.object}
        )
        await run.ledger.store_again(sender.incarnation, ask.version)
        state, key = run.state, (ask.version.lineage, ask.version.step)
        if state.version is not None and (state.version.lineage, state.version.step) == key:
            state.version = ask.version
        state.versions[key] = ask.version
        run.damaged = None
    log.info("version stored again step=%d object=%s", ask.version.step, ask.version.object)
    run.wake()
    return m.Empty()


async def _take_activation(run: RunContext, sender: Envelope, ask: m.Activation) -> Worker:
    """What an actor says of one load; a wrong digest is written down for good."""
    worker = record_heartbeat(run, sender, "actor")
    note_activation(worker, ask, run.clock())
    if ask.ok:
        return worker
    await run.ledger.add_event(
        "activation-failed",
        f"{sender.worker}: {worker.trouble}",
        {"lineage": ask.version.lineage, "step": ask.version.step, "digest": ask.digest},
    )
    now, patience = run.clock(), run.plan.lease_seconds
    known = frozenset(run.state.incarnations) - {LEARNER}
    if stall := describe_stall(run.state.workers.values(), now, patience, known):
        await run.end("Failed", Reason.ACTORS_QUARANTINED.value, stall)
    return worker


def note_activation(worker: Worker, ask: m.Activation, now: float) -> None:
    """What an actor says of one load of a version, at ``now`` on the coordinator's clock."""
    if ask.ok:
        worker.loaded, worker.trouble, worker.wrong_in_a_row = ask.version, "", 0
        return
    worker.trouble = ask.message or f"loaded digest {ask.digest}, expected {ask.version.digest}"
    if ask.digest:
        worker.num_wrong += 1
        worker.wrong_in_a_row += 1
        if worker.wrong_in_a_row == WRONG_MAX:
            worker.aside_since = now


def describe_stall(
    workers: Iterable[Worker],
    now: float,
    patience_seconds: float,
    known: frozenset[str] = frozenset(),
) -> str:
    """Who is set aside when that is more than half of the actors; else empty.

    Every actor that was ever heard of counts, those that are away too, and those that only an earlier life of
    the coordinator heard (``known``): they may come back. The majority
    must have lasted for the patience, so that a run that has just begun is not judged by its first actor.
    """
    actors = [one for one in workers if one.role == "actor"]
    aside = [
        one
        for one in actors
        if one.wrong_in_a_row >= WRONG_MAX and now - one.aside_since >= patience_seconds
    ]
    total = len(known | {one.name for one in actors})
    if 2 * len(aside) <= total:
        return ""
    who = "; ".join(f"{worker.name}: {worker.trouble}" for worker in aside)
    return (
        f"{len(aside)} of {total} actors could not load the weights faithfully, {WRONG_MAX} times "
        f"or more: look at storage, memory and engine versions ({who})"
    )
