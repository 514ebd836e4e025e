"""Live settings: from the document that the operator sent to the plan that a coordinator works with.

What they mean for a run is decided by a ``SettingsResolver``, which knows the configuration that the run began with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import ValidationError

from rollout.coordinator.plan import RunPlan
from rollout.errors import SpecError
from rollout.seams import Tracker
from rollout_api.fields.live import LiveSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSettings:
    """A plan under live settings, and what of them has to wait for the next run attempt."""

    plan: RunPlan
    deferred: tuple[str, ...] = ()


class SettingsResolver(Protocol):
    """From live settings to what a coordinator works with. Called outside the event loop."""

    def plan(self, live: LiveSettings) -> ResolvedSettings:
        """The plan. Raises SpecError."""
        ...

    def trackers(self, live: LiveSettings) -> Sequence[Tracker]:
        """Newly opened trackers. Raises SpecError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsResolver:
    """Of a run without a configuration: nothing but the number of steps can change."""

    begun: RunPlan
    opened: Sequence[Tracker] = ()

    def plan(self, live: LiveSettings) -> ResolvedSettings:
        """More steps, never fewer."""
        wanted, before = live.max_steps, self.begun.train.steps_max
        if wanted is None or (before is not None and wanted < before):
            return ResolvedSettings(plan=self.begun)
        train = replace(self.begun.train, steps_max=wanted)
        return ResolvedSettings(plan=replace(self.begun, train=train))

    def trackers(self, live: LiveSettings) -> Sequence[Tracker]:
        """Those that the run began with."""
        del live
        return self.opened


def _no_trackers(live: LiveSettings) -> Sequence[Tracker]:
    del live
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyResolver:
    """Of a run without steps: the tries of a row can change, and the trackers where it has some."""

    begun: RunPlan
    open_trackers: Callable[[LiveSettings], Sequence[Tracker]] = _no_trackers

    def plan(self, live: LiveSettings) -> ResolvedSettings:
        """The plan under these settings."""
        if live.limits is None:
            return ResolvedSettings(plan=self.begun)
        limits = replace(self.begun.limits, attempts_max=live.limits.sample_attempts)
        return ResolvedSettings(plan=replace(self.begun, limits=limits))

    def trackers(self, live: LiveSettings) -> Sequence[Tracker]:
        """Newly opened ones. Raises SpecError."""
        return self.open_trackers(live)


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
