"""Follows one kind: list, watch, list again when the watch is too old. Hands on each object once.

Bookmarks keep an idle watch provably alive: its age is what liveness asks for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollout_operator.controller.backoff import pause_seconds
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.errors import Gone, KubeError, Unavailable
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.echoes import IsEcho, nothing_is_echo
from rollout_operator.kube.resources import Resource

log = logging.getLogger(__name__)

PAGE_SIZE = 50
"""Of the largest objects that etcd takes, a page has 75 MB; who may make objects may put our labels on them."""
PAUSE_SECONDS_MAX = 15.0
RETRY_AFTER_SECONDS_MAX = 60.0
SHORT_SECONDS = 1.0
"""A watch that ends so soon and without an event did not live."""


class Sink(Protocol):
    """Where a reader's objects go. ``replace`` gets all that exist; what is not named is gone."""

    def put(self, resource: Resource, live: Mapping[str, Any]) -> None:
        """An object as it is now."""

    def drop(self, resource: Resource, live: Mapping[str, Any]) -> None:
        """An object that is gone."""

    def keep_only(
        self, resource: Resource, namespace: str | None, uids: set[str], version: float
    ) -> None:
        """After a list: everything else of this kind (and namespace) that is no newer is gone."""


@dataclass(slots=True, kw_only=True)
class Informer:
    """One kind, in one namespace or in all. ``run`` for ever; ``synced`` once the first list is in."""

    client: KubeClient
    resource: Resource
    sink: Sink
    namespace: str | None = None
    selector: str = ""
    timeout_seconds: int = 300
    silent_seconds: float = 70.0
    is_echo: IsEcho = nothing_is_echo
    synced: asyncio.Event = field(default_factory=asyncio.Event)
    clocks: Clocks = CLOCKS
    heard_at: float = field(init=False)
    _version: str = ""
    _num_events: int = 0

    def __post_init__(self) -> None:
        """Its age counts from now on."""
        self.heard_at = self.clocks.monotonic()

    @property
    def age_seconds(self) -> float:
        """Since anything was heard: an event, a bookmark or a list."""
        return self.clocks.monotonic() - self.heard_at

    async def run(self) -> None:
        """Follow until cancelled; every failure is logged and waited out, with growing pauses."""
        num_failures = 0
        while True:
            heard = self._num_events
            ended_well, least = await self._try()
            if ended_well or self._num_events > heard:
                num_failures = 0
                await asyncio.sleep(least)
                continue
            pause = pause_seconds(num_failures, PAUSE_SECONDS_MAX, self.clocks.noise())
            num_failures += 1
            await asyncio.sleep(max(pause, least))

    async def _try(self) -> tuple[bool, float]:
        """List when that is needed, then watch; whether it ended as it should, and how long to wait."""
        try:
            if not self._version:
                self._version = await self._list()
                self.synced.set()
            began = self.clocks.monotonic()
            await self._watch()
            return self.clocks.monotonic() - began >= SHORT_SECONDS, 0.0
        except Gone:
            self._version = ""
            return False, 0.0
        except KubeError as error:
            log.warning("watch failed resource=%s error=%s", self.resource.plural, error)
            self._version = self._version if isinstance(error, Unavailable) else ""
            return False, _asked_seconds(error)

    async def _list(self) -> str:
        uids: set[str] = set()
        parameters = {"limit": str(PAGE_SIZE)} | (
            {"labelSelector": self.selector} if self.selector else {}
        )
        while True:
            page = await self.client.list(self.resource, self.namespace, **parameters)
            for live in page.get("items") or ():
                uids.add(live["metadata"]["uid"])
                self._take(live)
            self.heard_at = self.clocks.monotonic()
            if not (more := page["metadata"].get("continue")):
                version = page["metadata"]["resourceVersion"]
                self.sink.keep_only(self.resource, self.namespace, uids, int(version))
                return version
            parameters["continue"] = more

    async def _watch(self) -> None:
        parameters = {"resourceVersion": self._version, "allowWatchBookmarks": "true"}
        if self.selector:
            parameters["labelSelector"] = self.selector
        events = self.client.watch(
            self.resource,
            self.namespace,
            self.timeout_seconds,
            self.silent_seconds,
            self.is_echo,
            **parameters,
        )
        async for event in events:
            self.heard_at = self.clocks.monotonic()
            live = event["object"]
            if event["type"] == "ERROR":
                raise _watch_error(self.resource, live)
            self._num_events += 1
            self._version = live["metadata"]["resourceVersion"]
            if event["type"] == "DELETED":
                self.sink.drop(self.resource, live)
            elif event["type"] != "BOOKMARK":
                self._take(live)

    def _take(self, live: Mapping[str, Any]) -> None:
        """Hand an object on. One that cannot be read changes nothing that is known, and holds up no other."""
        try:
            self.sink.put(self.resource, live)
        except Exception:
            meta = live["metadata"]
            place = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
            log.exception("object not read object=%s %s", self.resource.plural, place)


def _asked_seconds(error: KubeError) -> float:
    """How long the API server asks us to wait."""
    asked = error.retry_after_seconds if isinstance(error, Unavailable) else None
    return min(RETRY_AFTER_SECONDS_MAX, asked or 0.0)


def _watch_error(resource: Resource, status: Mapping[str, Any]) -> KubeError:
    code, message = int(status.get("code", 500)), str(status.get("message", ""))
    kind = Gone if code == 410 else Unavailable
    return kind(f"watch {resource.plural}", code, message)
