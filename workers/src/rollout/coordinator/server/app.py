"""The coordinator over HTTP: who calls, whether they may, how much at once; and nothing else.

Every path but ``/healthz`` and ``/metrics`` needs a bearer token of a role that the table allows. Bodies
are bounded, long-polls are bounded by the desks, and answers carry this life's ``boot`` and the ledger's
position, by which clients notice a ledger that lost acknowledged writes. Workers speak msgpack; a call
with ``Content-Type: application/json`` is answered in JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec
from aiohttp import web

from rollout.coordinator.dispatcher import ENCODERS, Coordinator, Wire
from rollout.coordinator.server.callers import Caller, Callers, Unauthenticated
from rollout.coordinator.server.load import Busy, Load
from rollout.coordinator.server.objects import add_routes
from rollout.coordinator.status.overview import build_status
from rollout.coordinator.status.progress import build_progress
from rollout.coordinator.status.prometheus import render_metrics
from rollout.errors import CallFormatMismatch, CoordinatorError
from rollout.objects.filesystem import FilesystemStore
from rollout.protocol.envelope import CALL_FORMAT, FORMAT, check_format, read_envelope
from rollout.protocol.refusals import build_refusal, status_of
from rollout.protocol.routes import (
    ALLOWED,
    CONFIG,
    OPEN,
    PROGRESS,
    ROUTES,
    STATUS,
    Route,
)
from rollout.protocol.transport import BOOT, POSITION

MSGPACK, JSON = "application/msgpack", "application/json"
KEY_AGAIN_SECONDS = 5
"""When a token whose key is not known yet may be tried again."""

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(
    coordinator: Coordinator,
    callers: Callers,
    *,
    config: bytes = b"{}",
    load: Load | None = None,
) -> web.Application:
    """The application; the caller serves it and closes the coordinator. ``config`` is for the workers."""
    load = load or Load()
    app = web.Application(
        client_max_size=load.bounds.body_bytes, middlewares=[build_guard(callers, load)]
    )
    for route in ROUTES.values():
        app.router.add_post(route.path, _call(coordinator, route, load))
    if isinstance(coordinator.run.store, FilesystemStore):
        add_routes(app, coordinator.run.store)
    app.router.add_get(STATUS, _json(lambda: msgspec.json.encode(build_status(coordinator.run))))
    app.router.add_get(PROGRESS, _json(lambda: build_progress(coordinator.run)))
    app.router.add_get(CONFIG, _config(config))
    app.router.add_get("/metrics", _metrics(coordinator))
    app.router.add_get("/healthz", _health)
    return app


def build_guard(callers: Callers, load: Load) -> Callable:
    """A middleware that lets through only whom the table allows, and no more than there is room for."""

    @web.middleware
    async def guard(request: web.Request, handler: Handle) -> web.StreamResponse:
        resource = request.match_info.route.resource
        path = "" if resource is None else resource.canonical
        if resource is None or path in OPEN:
            return await handler(request)
        try:
            caller = callers.identify(request.headers.get("Authorization", ""))
        except Unauthenticated as error:
            again = KEY_AGAIN_SECONDS if error.again else None
            return _refused(request, HTTPStatus.UNAUTHORIZED, CoordinatorError(str(error)), again)
        if caller.role not in ALLOWED.get((request.method, path), frozenset()):
            message = f"role {caller.role} may not call {request.method} {path}"
            return _refused(request, HTTPStatus.FORBIDDEN, CoordinatorError(message))
        try:
            return await _admit(request, handler, caller, load)
        except Busy as error:
            return _refused(
                request, error.status, CoordinatorError(str(error)), error.again_seconds
            )

    return guard


async def _admit(
    request: web.Request, handle: Handle, caller: Caller, load: Load
) -> web.StreamResponse:
    route = ROUTES.get(request.path)
    if route is None:
        return await handle(request)
    size = request.content_length
    if size is None:
        raise Busy(HTTPStatus.LENGTH_REQUIRED, "say Content-Length")
    with load.admit(caller.pod, size, route.body_bytes_max, waits=route.waits):
        return await handle(request)


def _call(coordinator: Coordinator, route: Route, load: Load) -> Handle:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(load.bounds.body_seconds):
                body = await request.read()
        except TimeoutError:
            seconds = load.bounds.body_seconds
            raise Busy(
                HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {seconds:.0f} s"
            ) from None
        wire = _wire(request)
        status, answer = await coordinator.handle(route, read_envelope(request.headers), body, wire)
        headers = {
            BOOT: coordinator.boot,
            POSITION: str(coordinator.run.ledger.position),
            FORMAT: str(CALL_FORMAT),
        }
        if status in {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INSUFFICIENT_STORAGE}:
            headers["Retry-After"] = str(load.bounds.again_seconds)
        kind = JSON if wire == "json" else MSGPACK
        return web.Response(status=status, body=answer, content_type=kind, headers=headers)

    return handle


def _wire(request: web.Request) -> Wire:
    return "msgpack" if request.content_type == MSGPACK else "json"


def _refused(
    request: web.Request, status: HTTPStatus, error: Exception, again_seconds: int | None = None
) -> web.Response:
    wire = _wire(request)
    body = ENCODERS[wire](build_refusal(error))
    headers = {} if again_seconds is None else {"Retry-After": str(again_seconds)}
    kind = JSON if wire == "json" else MSGPACK
    return web.Response(status=status, body=body, content_type=kind, headers=headers)


def _config(config: bytes) -> Handle:
    """What workers are told, for workers that read it as it is written here."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            check_format(read_envelope(request.headers).format)
        except CallFormatMismatch as error:
            return _refused(request, status_of(error), error)
        return web.Response(body=config, content_type=JSON)

    return handle


def _json(render: Callable[[], bytes]) -> Handle:
    async def handle(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(body=render(), content_type=JSON)

    return handle


def _metrics(coordinator: Coordinator) -> Handle:
    async def handle(request: web.Request) -> web.StreamResponse:
        del request
        text, content_type = render_metrics(coordinator)
        return web.Response(body=text, headers={"Content-Type": content_type})

    return handle


async def _health(request: web.Request) -> web.StreamResponse:
    del request
    return web.Response(text="ok\n")
