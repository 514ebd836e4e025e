"""What a caller may make of what it saved: publish it and take it back, give it a time, delete it. Each may be repeated."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rollout.service.asking import ServiceCaller, ServiceDoor
from rollout.service.calls import RefusedCall
from rollout.service.refusals import not_offered
from rollout.service.registry import ServiceModel
from rollout.service.wire.conversions import check_ttl
from rollout.service.wire.requests import ExpiryAsk, PlacedAsk, read_body


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


async def save_external(door: ServiceDoor, caller: ServiceCaller) -> dict[str, Any]:
    """Refused where it stands in a model's order, so that what follows it goes on. Raises CallRefused."""
    placed = read_body(caller.body, PlacedAsk)
    model = door.desk.registry.require(ServiceModel, placed.model_id, caller.owner)
    why = not_offered("save_weights_external", "save weights or a state, and ask for their archive")
    await door.desk.submit(model.id, placed.seq_id, RefusedCall(why=str(why)), caller.key)
    return {"request_id": f"{model.id}#{placed.seq_id}", "model_id": model.id}


CHECKPOINT = "training_runs/{id}/checkpoints/{kind}/{name}"
"""The place of one; ``kind`` as its path has it."""

CHANGES: Mapping[
    tuple[str, str], Callable[[ServiceDoor, ServiceCaller], Awaitable[dict[str, Any]]]
] = {
    ("DELETE", CHECKPOINT): delete,
    ("POST", f"{CHECKPOINT}/publish"): publish,
    ("DELETE", f"{CHECKPOINT}/publish"): withdraw,
    ("PUT", f"{CHECKPOINT}/ttl"): set_ttl,
    ("POST", "save_weights_external"): save_external,
}
"""By method and route."""
