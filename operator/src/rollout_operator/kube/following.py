"""Follows an optional kind while the cluster serves it, and asks for nothing of it while it does not.

Whether it is served is asked once at the start, then while an object of ours waits for it; while it is there,
now and then whether it still is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rollout_operator.errors import KubeError, NotFound
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.informer import Informer
from rollout_operator.kube.resources import Resource

log = logging.getLogger(__name__)

ASK_SECONDS = 3.0
STILL_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class Follower:
    """Whether a kind is there (``served``), and the readers of its objects.

    ``settled`` once that is known for the first time, and all its objects with it. ``wanted`` says whether any object of ours
    asks for it and waits; ``appeared`` is called once its objects are known; ``vanished`` when they are no more.
    """

    client: KubeClient
    resource: Resource
    build_readers: Callable[[], Iterable[Informer]]
    wanted: Callable[[], bool]
    appeared: Callable[[], None] = lambda: None
    vanished: Callable[[], None] = lambda: None
    served: bool = False
    settled: bool = False
    readers: tuple[Informer, ...] = ()
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            while True:
                if not self.settled or self.readers or self.wanted():
                    await self._look()
                await self._pause()
        finally:
            self._stop()

    def missing(self) -> list[str]:
        """What a start waits for: whether the kind is there, and if so its objects."""
        return [] if self.settled else [self.resource.plural]

    async def _look(self) -> None:
        try:
            there = await self._is_there()
        except KubeError as error:
            log.warning("cannot tell whether a kind is there kind=%s error=%s", self._name, error)
            return
        if there and not self.readers:
            self._start()
        elif self.readers and not there:
            log.warning("a kind is not served any more kind=%s", self._name)
            self._stop()
            self.vanished()
        self.settled = self.settled or not there

    async def _is_there(self) -> bool:
        try:
            found = await self.client.read(f"/apis/{self.resource.api_version}")
        except NotFound:
            return False
        return any(one["name"] == self.resource.plural for one in found.get("resources", ()))

    @property
    def _name(self) -> str:
        return f"{self.resource.plural}.{self.resource.group}"

    async def _pause(self) -> None:
        """Wait for the next question. Raises what broke a reader."""
        seconds = STILL_SECONDS if self.readers else ASK_SECONDS
        readers = self._tasks[: len(self.readers)]
        if not readers:
            await asyncio.sleep(seconds)
            return
        done, _ = await asyncio.wait(readers, timeout=seconds)
        for task in done:
            task.result()

    def _start(self) -> None:
        log.info("an optional kind is served and watched kind=%s", self._name)
        self.readers = tuple(self.build_readers())
        self._tasks = [asyncio.ensure_future(one.run()) for one in self.readers]
        self._tasks.append(asyncio.ensure_future(self._announce()))

    async def _announce(self) -> None:
        for reader in self.readers:
            await reader.synced.wait()
        self.served = self.settled = True
        self.appeared()

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks, self.readers, self.served = [], (), False
