"""What a caller has: models as training runs, saved weights and states as checkpoints, sessions. Newest first, in pages.

Nothing here changes anything; of another key's things nothing is told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from rollout.service.asking import ServiceCaller, ServiceDoor, describe_kind
from rollout.service.refusals import CallRefused, not_offered
from rollout.service.registry import (
    AnySaved,
    SavedStanding,
    SavedState,
    SavedVersion,
    ServiceModel,
    ServiceSampler,
    ServiceSession,
)

PAGE_MAX = 1000
Told = dict[str, Any]


async def list_runs(door: ServiceDoor, caller: ServiceCaller) -> Told:
    """The caller's models. Raises CallRefused."""
    limit, offset = _page(caller.query, 20)
    mine = [one for one in door.desk.registry.all(ServiceModel) if one.owner == caller.owner][::-1]
    checkpoints = await _checkpoints(door, caller.owner)
    runs = [await _run(door, one, checkpoints) for one in mine[offset : offset + limit]]
    return {"training_runs": runs, "cursor": _cursor(limit, offset, len(mine))}


async def describe_run(door: ServiceDoor, caller: ServiceCaller) -> Told:
    """One of the caller's models. Raises CallRefused."""
    model = door.desk.registry.require(ServiceModel, caller.name, caller.owner)
    return await _run(door, model, await _checkpoints(door, caller.owner))


async def list_run_checkpoints(door: ServiceDoor, caller: ServiceCaller) -> Told:
    """What one of the caller's models was saved as. Raises CallRefused."""
    model = door.desk.registry.require(ServiceModel, caller.name, caller.owner)
    found = await _checkpoints(door, caller.owner)
    return {"checkpoints": [one for one in found if _model_of(one) == model.id]}


async def list_checkpoints(door: ServiceDoor, caller: ServiceCaller) -> Told:
    """What all of the caller's models were saved as. Raises CallRefused."""
    limit, offset = _page(caller.query, 100)
    found = await _checkpoints(door, caller.owner)
    return {
        "checkpoints": found[offset : offset + limit],
        "cursor": _cursor(limit, offset, len(found)),
    }


async def list_sessions(door: ServiceDoor, caller: ServiceCaller) -> Told:
    """The caller's sessions. Raises CallRefused."""
    limit, offset = _page(caller.query, 20)
    found = door.desk.registry.all(ServiceSession)
    mine = [one.id for one in found if one.owner == caller.owner][::-1]
    return {"sessions": mine[offset : offset + limit]}


async def describe_session(door: ServiceDoor, caller: ServiceCaller) -> Told:
    """The models and samplers of one of the caller's sessions. Raises CallRefused."""
    registry = door.desk.registry
    session = registry.require(ServiceSession, caller.name, caller.owner)
    return {
        "training_run_ids": [
            one.id for one in registry.all(ServiceModel) if one.session == session.id
        ],
        "sampler_ids": [
            one.id for one in registry.all(ServiceSampler) if one.session == session.id
        ],
    }


async def describe_usage(door: ServiceDoor, caller: ServiceCaller) -> Told:
    """What keys of the caller's name use, and what they may: ``limit`` None is none. Not of the clients' protocol."""
    key, desk = caller.key, door.desk
    use = desk.use.of(key.name)
    models = [one for one in desk.registry.all(ServiceModel) if one.owner == key.name]
    return {
        "name": key.name,
        "tokens": {
            "spent": use.charged - use.held,
            "held": use.held,
            "limit": key.training_tokens,
        },
        "models": {"spent": len(models), "limit": key.training_models},
        "saved_bytes": {"spent": desk.sizes.saved(key.name), "limit": key.training_bytes},
        "waiting_bytes": desk.use.room.taken.get(key.name, 0),
    }


async def _run(door: ServiceDoor, model: ServiceModel, checkpoints: list[Told]) -> Told:
    last = await door.desk.last_call(model.id)
    if last is None:
        last = (await door.desk.times(ServiceModel))[model.id]
    mine = [one for one in checkpoints if _model_of(one) == model.id]
    newest = {
        kind: next((one for one in mine if one["checkpoint_type"] == kind), None)
        for kind in ("training", "sampler")
    }
    return {
        "training_run_id": model.id,
        "base_model": model.base,
        "model_owner": model.owner,
        **describe_kind(model.adapter),
        "corrupted": bool(door.desk.line(model.id).broken),
        "last_request_time": _time(last),
        "last_checkpoint": newest["training"],
        "last_sampler_checkpoint": newest["sampler"],
    }


async def _checkpoints(door: ServiceDoor, owner: str) -> list[Told]:
    """Newest first; what is gone is not among them."""
    found: list[tuple[float, Told]] = []
    registry = door.desk.registry
    for kind, name in ((SavedState, "training"), (SavedVersion, "sampler")):
        times = await door.desk.times(kind)
        for one in registry.all(kind):
            standing = registry.standing(one)
            if one.owner == owner and one.id in times and not standing.gone:
                size = door.desk.shelf.size(one)
                found.append((times[one.id], _checkpoint(one, name, times[one.id], standing, size)))
    return [told for _, told in sorted(found, key=lambda one: -one[0])]


def _checkpoint(
    saved: AnySaved, kind: str, made: float, standing: SavedStanding, size: int | None
) -> Told:
    return {
        "checkpoint_id": "/".join(saved.id.split("/")[3:]),
        "checkpoint_type": kind,
        "time": _time(made),
        "tinker_path": saved.id,
        "size_bytes": size,
        "public": standing.public,
        "expires_at": None if standing.expires_at is None else _time(standing.expires_at),
    }


def _model_of(checkpoint: Told) -> str:
    return checkpoint["tinker_path"].split("/")[2]


def _page(query: Mapping[str, str], default: int) -> tuple[int, int]:
    if query.get("access_scope", "owned") != "owned":
        raise not_offered(
            f"access_scope {query['access_scope'][:50]!r}: other keys' things", "say owned"
        )
    if "project_id" in query:
        raise not_offered("project_id: projects", "leave it out")
    said = {"limit": default, "offset": 0}
    for name, low, high in (("limit", 1, PAGE_MAX), ("offset", 0, 2**31)):
        text = query.get(name, str(said[name]))
        plain = text.isascii() and text.isdecimal() and len(text) <= len(str(high))
        if not plain or not low <= int(text) <= high:
            raise CallRefused(f"{name}: expected {low} to {high}, got {text[:50]!r}")
        said[name] = int(text)
    return said["limit"], said["offset"]


def _cursor(limit: int, offset: int, total: int) -> Told:
    return {"limit": limit, "offset": offset, "total_count": total}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


LISTINGS: Mapping[str, Callable[[ServiceDoor, ServiceCaller], Awaitable[Told]]] = {
    "training_runs": list_runs,
    "training_runs/{id}": describe_run,
    "training_runs/{id}/checkpoints": list_run_checkpoints,
    "checkpoints": list_checkpoints,
    "sessions": list_sessions,
    "sessions/{id}": describe_session,
    "rollout/usage": describe_usage,
}
"""By route, as clients ask them with GET."""
