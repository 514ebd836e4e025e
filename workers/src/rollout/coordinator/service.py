"""The coordinator over HTTP: authentication, size bounds, and nothing else.

Every path but ``/healthz`` and ``/metrics`` needs a bearer token of a role that the table allows.
Bodies are bounded, long-polls are bounded by the desks, and answers carry this life's ``boot`` and the
ledger's position, by which clients notice a ledger that lost acknowledged writes.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from rollout.coordinator.core import Coordinator, refuse
from rollout.coordinator.endpoints import ENDPOINTS, ROLES, token_for
from rollout.coordinator.objects import add_routes
from rollout.coordinator.overview import build_status
from rollout.coordinator.prometheus import render_metrics
from rollout.errors import CoordinatorError
from rollout.objects.filesystem import FilesystemStore

BODY_BYTES_MAX = 256 << 20
"""Largest request body: a few hundred long trajectories."""

CALLS_MAX = 256
"""Calls in flight; more are told to come back (503)."""

MSGPACK = "application/msgpack"


class Tokens:
    """Which role a bearer token speaks for."""

    def __init__(self, secret: str) -> None:
        self._by_role = {role: token_for(secret, role).encode() for role in ROLES}

    def role(self, header: str) -> str | None:
        """The role of an Authorization header, or None. Takes the same time for any wrong token."""
        given = header.removeprefix("Bearer ").strip().encode()
        found = [role for role, token in self._by_role.items() if hmac.compare_digest(given, token)]
        return found[0] if found else None


def build_app(coordinator: Coordinator, secret: str) -> web.Application:
    """The application; the caller serves it and closes the coordinator."""
    tokens = Tokens(secret)
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    calls = CallCounter()
    for path in ENDPOINTS:
        app.router.add_post(path, _endpoint(coordinator, tokens, path, calls))
    if isinstance(coordinator.run.store, FilesystemStore):
        add_routes(app, coordinator.run.store, tokens.role)
    app.router.add_get("/v1/status", _status(coordinator, tokens))
    app.router.add_get("/metrics", _metrics(coordinator))
    app.router.add_get("/healthz", _health)
    return app


class CallCounter:
    """How many calls are in flight."""

    def __init__(self) -> None:
        self.now = 0


Handle = Callable[[web.Request], Awaitable[web.Response]]


def _endpoint(coordinator: Coordinator, tokens: Tokens, path: str, calls: CallCounter) -> Handle:
    endpoint = ENDPOINTS[path]

    async def handle(request: web.Request) -> web.Response:
        role = tokens.role(request.headers.get("Authorization", ""))
        if role is None:
            return _refused(401, "the run's token is missing or wrong")
        if role not in endpoint.roles:
            return _refused(403, f"role {role} may not call {path}")
        if calls.now >= CALLS_MAX:
            return _refused(503, f"{CALLS_MAX} calls are in flight")
        calls.now += 1
        try:
            status, body = await coordinator.handle(endpoint, await request.read())
        finally:
            calls.now -= 1
        return _respond(coordinator, status, body)

    return handle


def _respond(coordinator: Coordinator, status: int, body: bytes) -> web.Response:
    headers = {
        "X-Rollout-Boot": coordinator.boot,
        "X-Rollout-Position": str(coordinator.run.ledger.position),
    }
    return web.Response(status=status, body=body, content_type=MSGPACK, headers=headers)


def _refused(status: int, message: str) -> web.Response:
    body = refuse(status, CoordinatorError(message))[1]
    return web.Response(status=status, body=body, content_type=MSGPACK)


def _status(coordinator: Coordinator, tokens: Tokens) -> Handle:
    async def handle(request: web.Request) -> web.Response:
        if tokens.role(request.headers.get("Authorization", "")) is None:
            return _refused(401, "the run's token is missing or wrong")
        body = msgspec.json.encode(build_status(coordinator.run))
        return web.Response(body=body, content_type="application/json")

    return handle


def _metrics(coordinator: Coordinator) -> Handle:
    async def handle(request: web.Request) -> web.Response:
        del request
        text, content_type = render_metrics(coordinator)
        return web.Response(body=text, headers={"Content-Type": content_type})

    return handle


async def _health(request: web.Request) -> web.Response:
    del request
    return web.Response(text="ok\n")
