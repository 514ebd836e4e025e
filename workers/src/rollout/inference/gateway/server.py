"""A gateway as a process: listens, keeps its files and engines in view, and drains when it is told to end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import ssl
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from rollout.common.duties import keep_going, until_one_fails
from rollout.common.stacks import heed_end
from rollout.errors import CoordinatorError
from rollout.inference.gateway.api import build_gateway
from rollout.inference.gateway.batches.runner import open_batches
from rollout.inference.gateway.state import GatewaySettings, GatewayState
from rollout.protocol.tls import Certificate

log = logging.getLogger(__name__)

KEEPALIVE_SECONDS = 60.0
"""Of connections without a whole head of a request, new ones too: clients of OpenAI's keep theirs for 5 s."""
BACKLOG = 2048
GRACE_SECONDS = 2.0
COLLECT_AFTER_OBJECTS = 20_000
"""Requests leave few cycles; to look for them after every 700 objects is a pause that some request waits for."""


async def serve_gateway(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises CoordinatorError where the address is taken."""
    stop = asyncio.Event()
    heed_end(stop.set, asyncio.get_running_loop(), shows=lambda: False)
    state = GatewayState(settings)
    batches = open_batches(state)
    await state.refresh()
    clients, admin = _runner(build_gateway(state, batches)), _runner(_build_admin(state))
    await clients.setup()
    await admin.setup()
    certificate = _read_certificate(settings)
    await _listen(clients, admin, settings, certificate)
    gc.freeze()  # what is here by now stays, and needs no look
    gc.set_threshold(COLLECT_AFTER_OBJECTS)
    log.info("listening host=%s port=%d", settings.host, settings.port)
    duties: dict[str, Any] = {
        "files": state.keep,
        "health": state.watch_health,
    }
    if certificate is not None:
        duties["certificate"] = certificate.watch
    if batches is not None:
        duties["batches"] = batches.run
    tasks = [asyncio.create_task(keep_going(name, duty)) for name, duty in duties.items()]
    try:
        await _first(stop.wait(), until_one_fails(tasks))
        if batches is not None:
            batches.hold()
        await state.drain()
    finally:
        for task in tasks:
            task.cancel()
        await clients.cleanup()
        await admin.cleanup()
        if batches is not None:
            await batches.close()
        await state.close()


def _runner(app: web.Application) -> web.AppRunner:
    return web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        handler_cancellation=True,
        keepalive_timeout=KEEPALIVE_SECONDS,
        shutdown_timeout=GRACE_SECONDS,
    )


def _read_certificate(settings: GatewaySettings) -> Certificate | None:
    """What TLS is spoken with; None where it is not. Raises SpecError."""
    if not settings.tls:
        return None
    folder = Path(settings.tls)
    return Certificate(folder / "tls.crt", folder / "tls.key")


async def _listen(
    clients: web.AppRunner,
    admin: web.AppRunner,
    settings: GatewaySettings,
    certificate: Certificate | None,
) -> None:
    await _listen_at(clients, settings.host, settings.port, None)
    if certificate is not None:
        await _listen_at(clients, settings.host, settings.tls_port, certificate.context)
    old = os.umask(0o077)
    try:
        await web.UnixSite(admin, settings.admin).start()
    finally:
        os.umask(old)


async def _listen_at(
    clients: web.AppRunner, host: str, port: int, context: ssl.SSLContext | None
) -> None:
    try:
        await web.TCPSite(
            clients, host, port, reuse_address=True, backlog=BACKLOG, ssl_context=context
        ).start()
    except OSError as error:
        raise CoordinatorError(f"cannot listen on {host}:{port}: {error}") from error


def _build_admin(state: GatewayState) -> web.Application:
    """What whoever started us asks, over a socket that nobody else can open."""

    async def status(request: web.Request) -> web.StreamResponse:
        del request
        versions = {
            one.version.name: {
                "ready": one.ready,
                "open": one.open_requests,
                "retired": one.retired,
            }
            for one in reversed(state.pools)
        }
        sockets = [one.socket for pool in state.pools for one in pool.version.replicas]
        body = {
            "ready": state.ready,
            "open": len(state.live),
            "versions": versions,
            "sockets": sockets,
        }
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    app = web.Application()
    app.router.add_get("/status", status)
    return app


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Until the first of them ends; raises what it raised."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for one in pending:
        one.cancel()
    for one in done:
        one.result()


def read_settings(path: Path) -> GatewaySettings:
    """The settings in a file. Raises CoordinatorError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=GatewaySettings)
    except (OSError, msgspec.MsgspecError) as error:
        raise CoordinatorError(f"{path} holds no settings of a gateway: {error}") from error
