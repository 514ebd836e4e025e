"""An actor whose engine shares its device with the learner: it samples in its turn, and sleeps in the learner's.

The turn is taken before the engine is started or woken, and given away once it sleeps. An engine that does not fall
asleep is ended instead: the learner is never let on to a device that is still full.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from rollout.engines.device_turns import DeviceTurn
from rollout.errors import EngineError
from rollout.seams import SleepingEngine

log = logging.getLogger(__name__)


class DeviceUse(Protocol):
    """When an actor may use its engine."""

    @property
    def yields(self) -> bool:
        """Whether somebody else may be waiting for the device that is used now."""
        ...

    async def enter(self) -> None:
        """Return once the engine may be used; before it is started, too. Raises EngineError."""
        ...

    async def leave(self) -> None:
        """There is nothing to sample now."""
        ...


class OwnDevice:
    """The engine's alone, or none: it may always be used."""

    yields = False

    async def enter(self) -> None:
        """At once."""

    async def leave(self) -> None:
        """Nothing to do."""


class SharedDevice:
    """Owns this actor's turn."""

    def __init__(self, engine: SleepingEngine, turn: DeviceTurn) -> None:
        self._engine, self._turn = engine, turn

    @property
    def yields(self) -> bool:
        """As ``DeviceUse``."""
        return self._turn.is_held

    async def enter(self) -> None:
        """Take the turn, then wake the engine. Raises EngineError where the learner does not end, or the engine fails."""
        if not self._turn.is_held:
            try:
                await asyncio.to_thread(self._turn.take)
            except (TimeoutError, OSError) as error:
                raise EngineError(f"the engine had no turn on its device: {error}") from error
        await self._engine.wake()

    async def leave(self) -> None:
        """Put the engine to sleep, then give the turn away; an engine that does not sleep is ended."""
        if not self._turn.is_held:
            return
        try:
            await self._engine.rest()
        except EngineError as error:
            log.warning("the engine does not sleep, and is ended error=%s", error)
            await self._engine.stop()
        self._turn.give()
