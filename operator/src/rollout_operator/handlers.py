"""The only file besides ``__main__`` that imports kopf: events become stored objects and keys.

kopf is informer and process shell here. No create, update or delete handlers: they are
edge-triggered. No kopf finalizer and no kopf annotation is ever written to an object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import aiohttp
import kopf

from rollout_api import GROUP, VERSION
from rollout_operator.cache.store import Store
from rollout_operator.controller.backoff import Backoff
from rollout_operator.kube.resources import OWN_KINDS, Resource
from rollout_operator.settings import Settings

KOPF_PAUSE_SECONDS_MAX = 15.0
LIST_SECONDS_MAX = 30.0
PAGE_SIZE = 50
"""Of the largest objects that etcd takes, a page has 75 MB."""


def register(
    registry: kopf.OperatorRegistry,
    store: Store,
    settings: Settings,
    heard: Callable[[str], None] = lambda _: None,
) -> None:
    """Watch our kinds; every event is stored, and its object's key becomes work."""
    source = settings

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        apply_settings(settings, source)

    for resource in OWN_KINDS:
        if resource.namespaced or not settings.namespaces:
            _watch(registry, store, resource, settings, heard)


def _watch(
    registry: kopf.OperatorRegistry,
    store: Store,
    resource: Resource,
    settings: Settings,
    heard: Callable[[str], None],
) -> None:
    @kopf.on.event(GROUP, VERSION, resource.plural, registry=registry, id=resource.plural)
    async def take(*, event: Mapping[str, Any], **_: Any) -> None:
        live = event["object"]
        heard(resource.path(live["metadata"].get("namespace") if settings.namespaces else None))
        if event["type"] == "DELETED":
            store.drop_object(resource.kind, live)
        else:
            store.put_object(resource.kind, live)


def register_login(
    registry: kopf.OperatorRegistry,
    open_session: Callable[[], aiohttp.ClientSession],
    server: str,
    namespace: str,
) -> None:
    """Give kopf a session of its own at each login: it closes the one that was refused."""

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(
            aiohttp_session=open_session(), server=server, default_namespace=namespace
        )


class NothingHandled(kopf.DiffBaseStorage):
    """For an operator without handlers of changes: nothing is copied, compared or kept."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Nothing of the object."""
        return cast("kopf.BodyEssence", {})

    def fetch(self, **_: Any) -> None:
        """Nothing was handled before."""

    def store(self, **_: Any) -> None:
        """Nothing is written to the object."""


def apply_settings(target: kopf.OperatorSettings, source: Settings) -> None:
    """Keep nothing on objects; bound every call, and try again for as long as it takes."""
    target.persistence.diffbase_storage = NothingHandled()
    target.posting.enabled = False
    target.scanning.disabled = True
    target.watching.chunk_size = PAGE_SIZE
    target.watching.server_timeout = source.server_timeout_seconds
    target.watching.connect_timeout = source.connect_timeout_seconds
    target.watching.inactivity_timeout = source.watch_seconds
    target.networking.connect_timeout = source.connect_timeout_seconds
    target.networking.request_timeout = LIST_SECONDS_MAX
    target.networking.error_backoffs = Backoff(seconds_max=KOPF_PAUSE_SECONDS_MAX)
    target.queueing.idle_timeout = 1.0
    target.process.ultimate_exiting_timeout = None
