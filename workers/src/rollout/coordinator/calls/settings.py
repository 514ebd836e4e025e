"""The operator's desk: live settings by generation, the order to stop, and snapshots that are ordered.

The first two are durable before they are acknowledged: a coordinator that comes back runs under the last settings that
were taken, and stops where the one before it was told to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from rollout.coordinator.calls.learner import open_version
from rollout.coordinator.calls.registry import answers
from rollout.coordinator.context import RunContext
from rollout.coordinator.settings import ResolvedSettings, parse_live
from rollout.errors import SpecError, StaleSettings
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.envelope import Envelope
from rollout.seams import Tracker
from rollout.tracking.closing import close_trackers
from rollout_api.fields.live import LiveSettings

log = logging.getLogger(__name__)


@answers(routes.STOP)
async def stop(run: RunContext, sender: Envelope, ask: m.Stop) -> m.Empty:
    """A person, or the operator, ends the run early. Raises StaleSettings where another run attempt is meant."""
    del sender
    if ask.attempt not in {None, run.plan.attempt}:
        raise StaleSettings(
            f"the order to stop is for run attempt {ask.attempt}, this is {run.plan.attempt}: read the object"
            " again and stop the attempt that it names"
        )
    async with run.turn:
        await run.stop(ask.reason or "Stopped")
    return m.Empty()


@answers(routes.SETTINGS)
async def take_settings(run: RunContext, sender: Envelope, ask: m.Settings) -> m.SettingsTaken:
    """Put live settings into force. Raises StaleSettings and SpecError."""
    del sender
    async with run.turn:
        if ask.generation < run.settings_generation:
            raise StaleSettings(
                f"settings of generation {ask.generation} came after {run.settings_generation}:"
                " read the object again and send its newest"
            )
        live = parse_live(ask.live)
        resolved = await asyncio.to_thread(run.resolver.plan, live)
        if (ask.generation, live) != (run.settings_generation, run.live):
            await _put_into_force(run, ask.generation, live, resolved)
    run.wake()
    return m.SettingsTaken(generation=run.settings_generation, deferred=resolved.deferred)


@answers(routes.SNAPSHOT)
async def take_snapshot(run: RunContext, sender: Envelope, ask: m.SnapshotOrder) -> m.SnapshotState:
    """How far a snapshot is; the first order begins it. Raises SpecError where this coordinator takes none."""
    del sender
    if run.snapshot_taker is None:
        raise SpecError(f"run {run.plan.name} keeps no state that a snapshot could be taken of")
    return run.snapshot_taker.answer(ask)


async def _put_into_force(
    run: RunContext, generation: int, live: LiveSettings, resolved: ResolvedSettings
) -> None:
    trackers = run.trackers
    if live.tracking != run.live.tracking:
        trackers = await asyncio.to_thread(run.resolver.trackers, live)
    await run.remember(generation=generation, live=live)
    await _change_trackers(run, trackers)
    run.settings_generation, run.live, run.plan = generation, live, resolved.plan
    limit_tries(run)
    log.info("live settings generation=%d deferred=%s", generation, list(resolved.deferred))
    await open_version(run)


def limit_tries(run: RunContext) -> None:
    """Tell the ledger how often to try, where live settings say so."""
    if run.live.limits is not None:
        run.ledger.limit_failures(run.plan.limits.attempts_max)


async def _change_trackers(run: RunContext, trackers: Sequence[Tracker]) -> None:
    async with run.tracking:
        gone = [one for one in run.trackers if one not in trackers]
        run.trackers, run.bad_trackers = trackers, {} if gone else run.bad_trackers
    await asyncio.to_thread(close_trackers, gone, None)
