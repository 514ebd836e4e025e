"""The operator's desk: live settings by generation, and the order to stop.

Settings are durable before they are acknowledged, so that a coordinator that comes back runs under the
last ones that were taken. What they mean for this run is decided by a ``Tuning``, which knows the
configuration that the run began with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import ValidationError

from rollout.coordinator.calls.learner import open_version
from rollout.coordinator.context import RunContext
from rollout.coordinator.plan import RunPlan
from rollout.errors import SpecError, StaleSettings
from rollout.protocol import messages as m
from rollout.seams import Tracker
from rollout_api.live import LiveSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A plan under live settings, and what of them has to wait for the next run attempt."""

    plan: RunPlan
    deferred: tuple[str, ...] = ()


class Tuning(Protocol):
    """From live settings to what a coordinator works with. Called outside the event loop."""

    def plan(self, live: LiveSettings) -> Tuned:
        """The plan. Raises SpecError."""
        ...

    def trackers(self, live: LiveSettings) -> Sequence[Tracker]:
        """Newly opened trackers. Raises SpecError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsTuning:
    """Of a run without a configuration: nothing but the number of steps can change."""

    begun: RunPlan
    opened: Sequence[Tracker] = ()

    def plan(self, live: LiveSettings) -> Tuned:
        """More steps, never fewer."""
        wanted, before = live.max_steps, self.begun.steps_max
        if wanted is None or (before is not None and wanted < before):
            return Tuned(plan=self.begun)
        return Tuned(plan=replace(self.begun, steps_max=wanted))

    def trackers(self, live: LiveSettings) -> Sequence[Tracker]:
        """Those that the run began with."""
        del live
        return self.opened


def parse_live(document: dict[str, Any]) -> LiveSettings:
    """Raises SpecError that names the field."""
    try:
        return LiveSettings.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SpecError(f"live.{where}: {first['msg']}") from error


def choose_settings(stored: Mapping[str, Any], begun: int) -> tuple[int, LiveSettings]:
    """The settings that a coordinator opens under, from the ledger, and their generation.

    A configuration of a newer generation (``begun``) already says what they said. Raises SpecError.
    """
    generation = int(stored.get("generation", 0))
    if generation < begun:
        return begun, LiveSettings()
    return generation, parse_live(stored.get("live", {}))


async def stop(run: RunContext, ask: m.Stop) -> m.Empty:
    """A person, or the operator, ends the run early."""
    if run.state.stopping is None:
        run.state.stopping = ask.reason or "Stopped"
        log.info("stopping reason=%s", ask.reason)
    run.wake()
    return m.Empty()


async def take_settings(run: RunContext, tuning: Tuning, ask: m.Settings) -> m.SettingsTaken:
    """Put live settings into force. Raises StaleSettings and SpecError."""
    async with run.turn:
        if ask.generation < run.settings_generation:
            raise StaleSettings(
                f"settings of generation {ask.generation} came after {run.settings_generation}:"
                " read the object again and send its newest"
            )
        live = parse_live(ask.live)
        tuned = await asyncio.to_thread(tuning.plan, live)
        if (ask.generation, live) != (run.settings_generation, run.live):
            await _put_into_force(run, tuning, ask.generation, live, tuned)
    run.wake()
    return m.SettingsTaken(generation=run.settings_generation, deferred=tuned.deferred)


async def _put_into_force(
    run: RunContext, tuning: Tuning, generation: int, live: LiveSettings, tuned: Tuned
) -> None:
    trackers = run.trackers
    if live.tracking != run.live.tracking:
        trackers = await asyncio.to_thread(tuning.trackers, live)
    await remember(run, generation=generation, live=live, group=run.group.incarnation)
    await _change_trackers(run, trackers)
    run.settings_generation, run.live, run.plan = generation, live, tuned.plan
    limit_tries(run)
    log.info("live settings generation=%d deferred=%s", generation, list(tuned.deferred))
    await open_version(run)


def limit_tries(run: RunContext) -> None:
    """Tell the ledger how often to try, where live settings say so."""
    if run.live.limits is not None:
        run.ledger.limit_failures(run.plan.attempts_max)


async def _change_trackers(run: RunContext, trackers: Sequence[Tracker]) -> None:
    async with run.tracking:
        gone = [one for one in run.trackers if one not in trackers]
        run.trackers, run.bad_tracker = trackers, "" if gone else run.bad_tracker
    for tracker in gone:
        await asyncio.to_thread(tracker.close)


async def remember(run: RunContext, *, generation: int, live: LiveSettings, group: int) -> None:
    """Make durable what the operator has set. Raises LedgerError."""
    document = live.model_dump(mode="json", exclude_none=True)
    await run.ledger.set_settings({"generation": generation, "live": document, "group": group})
