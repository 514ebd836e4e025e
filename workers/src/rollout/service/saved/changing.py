"""What a caller may make of what it saved: publish it and take it back, give it a time, delete it. Each may be repeated."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rollout.service.asking import ServiceCaller, ServiceDoor
from rollout.service.wire.conversions import check_ttl
from rollout.service.wire.requests import ExpiryAsk, read_body


async def delete(door: ServiceDoor, caller: ServiceCaller) -> dict[str, Any]:
    """It is there no more. Raises CallRefused."""
    await door.desk.shelf.delete(caller.checkpoint, caller.owner)
    return {}


async def publish(door: ServiceDoor, caller: ServiceCaller) -> dict[str, Any]:
    """Every key may read it, by its path. Raises CallRefused."""
    await door.desk.shelf.publish(caller.checkpoint, caller.owner, public=True)
    return {}


async def withdraw(door: ServiceDoor, caller: ServiceCaller) -> dict[str, Any]:
    """Its owner's alone again; what others began from it goes on. Raises CallRefused."""
    await door.desk.shelf.publish(caller.checkpoint, caller.owner, public=False)
    return {}


async def set_ttl(door: ServiceDoor, caller: ServiceCaller) -> dict[str, Any]:
    """It expires so many seconds from now, or never. Raises CallRefused."""
    ask = read_body(caller.body, ExpiryAsk)
    if ask.ttl_seconds is not None:
        check_ttl(ask.ttl_seconds)
    expires_at = None if ask.ttl_seconds is None else time.time() + ask.ttl_seconds
    await door.desk.shelf.set_expiry(caller.checkpoint, caller.owner, expires_at)
    return {}


CHECKPOINT = "training_runs/{id}/checkpoints/{kind}/{name}"
"""The place of one; ``kind`` as its path has it."""

CHANGES: Mapping[
    tuple[str, str], Callable[[ServiceDoor, ServiceCaller], Awaitable[dict[str, Any]]]
] = {
    ("DELETE", CHECKPOINT): delete,
    ("POST", f"{CHECKPOINT}/publish"): publish,
    ("DELETE", f"{CHECKPOINT}/publish"): withdraw,
    ("PUT", f"{CHECKPOINT}/ttl"): set_ttl,
}
"""By method and route."""
