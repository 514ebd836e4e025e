"""The service's routes, under ``/api/v1`` as clients call them. Every call but the checks of health needs a key.

A call on a model is acknowledged with the id of its answer, which is asked for at ``retrieve_future``; ids are made of the
model and the call's number, so that a repeated call has the same one. What the protocol has and this service has not is
refused by name.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from rollout.errors import RolloutError
from rollout.service.answers import FutureReply, reply_to
from rollout.service.asking import ServiceCaller, ServiceDoor
from rollout.service.listing import LISTINGS
from rollout.service.refusals import CallRefused, not_offered
from rollout.service.registry import checkpoint_path
from rollout.service.saved.archive import require_archive
from rollout.service.saved.changing import CHANGES, CHECKPOINT
from rollout.service.tenants.bodies import held_body
from rollout.service.tenants.sending import SMALL_BYTES, send_large

log = logging.getLogger(__name__)

PREFIX = "/api/v1"
JSON_TYPE = "application/json"
RETRY_SECONDS_MAX = 60
"""Clients do not heed a longer wait; they ask again by themselves."""
UNOFFERED = {
    "copy_weights": "save the weights under another name",
    "create_custom_loss": "forward_backward_custom computes your loss where you are",
    "auth/token": "keys are sent as they are",
}
"""Routes without a model's order that are refused by their name, and what to do instead."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_service(door: ServiceDoor, body_bytes_max: int) -> web.Application:
    """The application; the caller serves it and lets handlers end though their client has left."""
    app = web.Application(client_max_size=body_bytes_max, middlewares=[_tell_refusals])
    posts: dict[str, Callable[[ServiceDoor, ServiceCaller], Awaitable[Any]]] = {
        "client/config": ServiceDoor.client_config,
        "client/dynamic_config": ServiceDoor.client_config,
        "create_session": ServiceDoor.create_session,
        "session_heartbeat": ServiceDoor.heartbeat,
        "telemetry": ServiceDoor.telemetry,
        "create_model": ServiceDoor.create_model,
        "get_info": ServiceDoor.describe_model,
        "weights_info": ServiceDoor.describe_saved,
        "forward_backward": ServiceDoor.forward_backward,
        "optim_step": ServiceDoor.optim_step,
        "save_weights_for_sampler": ServiceDoor.save_for_sampler,
        "save_weights": ServiceDoor.save_state,
        "load_weights": ServiceDoor.load_state,
        "create_sampling_session": ServiceDoor.create_sampler,
        "asample": ServiceDoor.sample,
        "cancel_future": ServiceDoor.cancel,
    }
    for path, call in posts.items():
        app.router.add_post(f"{PREFIX}/{path}", partial(_answer, door, call))
    for path, instead in UNOFFERED.items():
        app.router.add_post(f"{PREFIX}/{path}", partial(_refuse, path, instead))
    app.router.add_post(f"{PREFIX}/retrieve_future", partial(_retrieve, door))
    app.router.add_post(
        f"{PREFIX}/sessions/{{id}}/finish", partial(_answer, door, ServiceDoor.finish_session)
    )
    app.router.add_get(f"{PREFIX}/healthz", _health)
    app.router.add_get(
        f"{PREFIX}/get_server_capabilities", partial(_answer, door, ServiceDoor.capabilities)
    )
    app.router.add_get(
        f"{PREFIX}/samplers/{{id}}", partial(_answer, door, ServiceDoor.describe_sampler)
    )
    app.router.add_get(
        f"{PREFIX}/rollout/models/{{id}}", partial(_answer, door, ServiceDoor.model_state)
    )
    for path, look in LISTINGS.items():
        app.router.add_get(f"{PREFIX}/{path}", partial(_answer, door, look))
    app.router.add_get(f"{PREFIX}/{CHECKPOINT}/archive", partial(_download, door), allow_head=False)
    for (method, path), change in CHANGES.items():
        app.router.add_route(method, f"{PREFIX}/{path}", partial(_answer, door, change))
    return app


@web.middleware
async def _tell_refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal in one form; whatever was not foreseen is told, and the next request served."""
    try:
        return await handler(request)
    except CallRefused as refusal:
        said = _json({"detail": str(refusal)}, refusal.status)
        if refusal.status == 429:
            said.headers["Retry-After"] = str(
                math.ceil(min(max(refusal.retry_after, 1), RETRY_SECONDS_MAX))
            )
        return said
    except web.HTTPException as error:
        return _json({"detail": _words(request, error)}, error.status)
    except Exception as error:  # the outermost loop of a request
        log.exception("request failed path=%s", request.path[:100])
        said = error if isinstance(error, RolloutError) else type(error).__name__
        return _json({"detail": f"the service failed: {said}; its log says more"}, 500)


def _words(request: web.Request, error: web.HTTPException) -> str:
    if error.status == 404:
        return f"{request.method} {request.path[:100]} is not offered by this service"
    if error.status == 413:
        return "the body is too large: send fewer sequences in a call"
    return error.reason


async def _answer(
    door: ServiceDoor,
    call: Callable[[ServiceDoor, ServiceCaller], Awaitable[Any]],
    request: web.Request,
) -> web.StreamResponse:
    async with _caller(door, request) as caller:
        return _json(await call(door, caller))


async def _retrieve(door: ServiceDoor, request: web.Request) -> web.StreamResponse:
    async with _caller(door, request) as caller:
        reply: FutureReply = await reply_to(door, caller)
    headers = {"Content-Type": reply.content_type, **reply.headers}
    if len(reply.body) > SMALL_BYTES:
        return await send_large(request, reply.body, door.answers, caller.owner, headers)
    return web.Response(body=reply.body, status=reply.status, headers=headers)


async def _download(door: ServiceDoor, request: web.Request) -> web.StreamResponse:
    async with _caller(door, request) as caller:
        downloads, saved = require_archive(
            door.downloads, door.desk.registry, caller.checkpoint, caller.key
        )
    return await downloads.send(saved, caller.owner, request)


@asynccontextmanager
async def _caller(door: ServiceDoor, request: web.Request) -> AsyncIterator[ServiceCaller]:
    key = door.identify(request.headers.get("X-API-Key", ""))
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise not_offered("Content-Encoding: a compressed body", "send it as it is")
    place = request.match_info
    async with held_body(request, door.bodies, key.name) as body:
        yield ServiceCaller(
            key=key,
            body=body,
            name=place.get("id", ""),
            checkpoint=checkpoint_path(place["id"], place["kind"], place["name"])
            if "kind" in place
            else "",
            query=dict(request.query),
        )


async def _refuse(path: str, instead: str, request: web.Request) -> web.StreamResponse:
    del request
    raise not_offered(path, instead)


async def _health(request: web.Request) -> web.StreamResponse:
    del request
    return _json({"status": "ok"})


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type=JSON_TYPE)
