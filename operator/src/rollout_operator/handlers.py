"""The only file besides ``__main__`` that imports kopf: events become stored objects and keys.

kopf is informer and process shell here. No create, update or delete handlers: they are
edge-triggered. No kopf finalizer and no kopf annotation is ever written to an object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import kopf

from rollout_api import GROUP, VERSION
from rollout_operator.kube.resources import OWN_KINDS, Resource
from rollout_operator.settings import Settings
from rollout_operator.store import Store

KOPF_RETRIES = (0.5, 1, 2, 4)


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
            _watch(registry, store, resource, heard)


def _watch(
    registry: kopf.OperatorRegistry,
    store: Store,
    resource: Resource,
    heard: Callable[[str], None],
) -> None:
    @kopf.on.event(GROUP, VERSION, resource.plural, registry=registry, id=resource.plural)
    async def take(*, event: Mapping[str, Any], **_: Any) -> None:
        heard(resource.plural)
        if event["type"] == "DELETED":
            store.drop_object(resource.kind, event["object"])
        else:
            store.put_object(resource.kind, event["object"])


def register_login(
    registry: kopf.OperatorRegistry, session: aiohttp.ClientSession, server: str, namespace: str
) -> None:
    """Kopf uses the operator's own session."""

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(
            aiohttp_session=session, server=server, default_namespace=namespace
        )


def apply_settings(target: kopf.OperatorSettings, source: Settings) -> None:
    """Kopf keeps nothing on objects, and every watch and call is bounded."""
    target.posting.enabled = False
    target.scanning.disabled = True
    target.watching.server_timeout = source.server_timeout_seconds
    target.watching.connect_timeout = source.connect_timeout_seconds
    target.networking.connect_timeout = source.connect_timeout_seconds
    target.networking.error_backoffs = KOPF_RETRIES
    target.queueing.idle_timeout = 1.0
