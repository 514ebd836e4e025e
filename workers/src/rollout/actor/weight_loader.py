"""Brings the engine to the version that a task wants, and proves that it is that version.

The digest of the tensors handed to the engine's loader must be the
version's. A mismatch quarantines the actor: nothing is sampled, the load is tried again from the
store (from a dense base, where deltas led to it), and every attempt is reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rollout.errors import EngineError, StoreError
from rollout.seams import Engine, WeightSource
from rollout.types import WeightVersion

ATTEMPTS_MAX = 3
"""Loads of one version before this actor gives its tasks back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One attempt to load ``version``. ``ok`` is False when its digest, or the engine, said no."""

    version: WeightVersion
    digest: str
    ok: bool
    seconds: float
    message: str = ""


class WeightLoader:
    """Owns which version may be sampled from; ``report`` is told of every attempt, in a thread."""

    def __init__(
        self, engine: Engine, weights: WeightSource, report: Callable[[Loaded], None]
    ) -> None:
        self._engine = engine
        self._weights = weights
        self._report = report
        self._verified: WeightVersion | None = None
        self._telling: asyncio.Task[None] | None = None

    @property
    def verified(self) -> WeightVersion | None:
        """The version in the engine, its digest met; None in quarantine and after an engine crash."""
        return self._verified if self._engine.version == self._verified else None

    async def activate(self, version: WeightVersion) -> None:
        """Load ``version`` unless it is there. Raises EngineError when it cannot be had faithfully."""
        if self.verified == version:
            return
        there, self._verified = self.verified, None
        message = ""
        for _ in range(ATTEMPTS_MAX):
            loaded = await self._load(version, there)
            there = None
            await self._tell(loaded)
            if loaded.ok:
                self._verified = version
                return
            message = loaded.message
        raise EngineError(
            f"version {version.step} of lineage {version.lineage} could not be loaded in "
            f"{ATTEMPTS_MAX} attempts; last: {message}"
        )

    async def settle(self) -> None:
        """Wait until everything is reported; raises what the report raised."""
        if self._telling is not None:
            await self._telling

    async def _tell(self, loaded: Loaded) -> None:
        """Report in order; sampling does not wait for the news that all is well."""
        await self.settle()
        self._telling = asyncio.create_task(asyncio.to_thread(self._report, loaded))
        if not loaded.ok:
            await self._telling

    def _find(
        self, version: WeightVersion, there: WeightVersion | None
    ) -> tuple[Path, frozenset[str] | None]:
        """The version's file, and the tensors that differ from what is ``there``; None where nothing verified is."""
        path = self._weights.path(version.object)
        if there is None:
            return path, None
        return path, self._weights.changes(there.object, version.object)

    async def _load(self, version: WeightVersion, there: WeightVersion | None) -> Loaded:
        start = time.monotonic()
        digest, message = "", ""
        try:
            path, changes = await asyncio.to_thread(self._find, version, there)
            digest = await self._engine.load(version, path, changes)
        except (EngineError, StoreError) as error:
            message = f"{type(error).__name__}: {error}"
        else:
            if digest != version.digest:
                message = f"loaded {digest}, expected {version.digest}: not this version's weights"
                await asyncio.to_thread(self._weights.forget)
        return Loaded(
            version=version,
            digest=digest,
            ok=not message,
            seconds=time.monotonic() - start,
            message=message,
        )
