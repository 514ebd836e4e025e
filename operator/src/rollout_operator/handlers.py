"""The only file besides ``__main__`` that imports kopf: events become keys, nothing else.

kopf is informer and process shell here. No create, update or delete handlers: they are
edge-triggered. No kopf finalizer and no kopf annotation is ever written to an object.
"""

from __future__ import annotations

from typing import Any

import kopf

from rollout_operator.keys import Key, KeyQueue
from rollout_operator.settings import Settings

GROUP = "rollout.dev"
VERSION = "v1alpha1"


def register(registry: kopf.OperatorRegistry, queue: KeyQueue, settings: Settings) -> None:
    """Watch our kinds; every event enqueues its object's key."""
    source = settings

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        apply_settings(settings, source)

    @kopf.on.event(GROUP, VERSION, "rolloutruns", registry=registry)
    def enqueue(*, name: str | None, namespace: str | None, **_: Any) -> None:
        if name and namespace:
            queue.put(Key(namespace=namespace, name=name))


def apply_settings(target: kopf.OperatorSettings, source: Settings) -> None:
    """Kopf keeps nothing on objects, and every watch and call is bounded."""
    target.posting.enabled = False
    target.watching.server_timeout = source.server_timeout_seconds
    target.watching.connect_timeout = source.connect_timeout_seconds
    target.networking.connect_timeout = source.connect_timeout_seconds
