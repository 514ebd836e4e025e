"""What environments keep, as of the versions that episodes are played with: read once a version, from the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from rollout.errors import InfrastructureError, RolloutError
from rollout.ledger.records import MemoryRow
from rollout.memory import apply_writes
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout.types import WeightVersion

VERSIONS_MAX = 4
"""Whose entries are kept here; those that were read longest ago go."""
TRIES_MAX = 3
"""How often reading begins anew because rows have gone meanwhile."""

Version = tuple[int, int]
Entries = dict[str, MemoryRow]


class RunMemory:
    """As ``MemorySource``; of one event loop."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._client = client
        self._known: dict[Version, Entries] = {}
        self._reading = asyncio.Lock()

    async def entries_of(self, version: WeightVersion) -> Mapping[str, MemoryRow]:
        """The entries as of a version. Raises InfrastructureError, also for one that is too old to be known."""
        key = (version.lineage, version.step)
        async with self._reading:
            if key not in self._known:
                try:
                    entries = await self._read(*key)
                except InfrastructureError:
                    raise
                except RolloutError as error:
                    raise InfrastructureError(f"memory of step {key[1]}: {error}") from error
                while len(self._known) >= VERSIONS_MAX:
                    del self._known[next(iter(self._known))]
                self._known[key] = entries
            return self._known[key]

    async def _read(self, lineage: int, step: int) -> Entries:
        """Behind the nearest earlier version of the lineage that is here, unless rows of since then are gone."""
        earlier = [one for at, one in self._known if at == lineage and one < step]
        base = max(earlier, default=0)
        for _ in range(TRIES_MAX):
            entries = dict(self._known[lineage, base]) if base else {}
            if await self._go_on(entries, base, (lineage, step)):
                return entries
            base = 0
        raise InfrastructureError(
            f"memory of step {step} was pruned {TRIES_MAX} times while it was read"
        )

    async def _go_on(self, entries: Entries, base: int, version: Version) -> bool:
        """Take the rows after step ``base``; False where the rows that were read are not of one time."""
        after, kept_from = (base + 1, 0, 0, "") if base else (0, 0, 0, ""), None
        while True:
            ask = m.ReadMemory(lineage=version[0], step=version[1], after=after)
            read = await asyncio.to_thread(self._client.call, routes.READ_MEMORY, ask)
            part = read.part
            if kept_from is not None and part.kept_from != kept_from:
                return False
            if base and part.kept_from > base:
                return False
            kept_from = part.kept_from
            apply_writes(entries, part.rows)
            if not part.more:
                return True
            last = part.rows[-1]
            after = (last.step, last.ordinal, last.sample, last.key)
