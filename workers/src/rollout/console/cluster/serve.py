"""The console of a cluster as a process: TLS beyond loopback, until it is told to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from rollout.common.stacks import heed_end
from rollout.console import asking, live
from rollout.console.answering import add_static, tell_errors, with_headers
from rollout.console.cluster import acting, door, inside, pages
from rollout.console.cluster.listed import ObjectList
from rollout.console.cluster.reviews import Reviews
from rollout.console.memory import return_large_blocks
from rollout.errors import SpecError
from rollout.protocol.tls import Certificate, is_loopback

if TYPE_CHECKING:
    from rollout.cluster.client import Cluster

READERS_MAX = 16
"""Calls to the API server at a time."""
FORM_BYTES_MAX = HEADER_BYTES_MAX = 1 << 16
"""A token of a cluster with many groups is long."""
GRACE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConsoleSettings:
    """Where it listens, and what it looks at: ``namespaces``, none named for all."""

    host: str
    port: int
    certificate: Path | None
    namespaces: tuple[str, ...] = ()


def build_cluster_app(
    cluster: Cluster,
    namespaces: Sequence[str],
    *,
    secure: bool,
    clock: Callable[[], float] = time.monotonic,
) -> web.Application:
    """The pages of a cluster. ``secure``: they travel by TLS."""
    app = web.Application(
        middlewares=[with_headers, tell_errors, door.bound, door.guard],
        client_max_size=FORM_BYTES_MAX,
    )
    app[asking.READERS] = asyncio.Semaphore(READERS_MAX)
    app[live.FOLLOWERS] = set()
    app[door.SECURE] = secure
    app[door.REQUESTS] = set()
    app[door.REVIEWS] = Reviews(cluster, clock)
    app[door.SESSIONS] = door.Sessions(clock)
    app[pages.CLUSTER] = cluster
    app[pages.NAMESPACES] = tuple(namespaces)
    app[pages.LISTS] = {
        kind: ObjectList(cluster, namespaces, kind, shape, clock)
        for kind, shape in pages.SHAPES.items()
    }
    for view in (acting, door, pages, inside):
        app.add_routes(view.routes)
    add_static(app)
    return app


async def serve_cluster_console(
    cluster: Cluster, settings: ClusterConsoleSettings, announce: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM. Raises SpecError where tokens would travel in the clear, or the address is taken."""
    certificate = open_console_certificate(settings)
    return_large_blocks()
    stop = asyncio.Event()
    heed_end(stop.set, asyncio.get_running_loop(), shows=lambda: False)
    app = build_cluster_app(cluster, settings.namespaces, secure=certificate is not None)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        handler_cancellation=True,
        shutdown_timeout=GRACE_SECONDS,
        max_field_size=HEADER_BYTES_MAX,
    )
    await runner.setup()
    renewing = None if certificate is None else asyncio.create_task(certificate.watch())
    try:
        tls = None if certificate is None else certificate.context
        site = web.TCPSite(runner, settings.host, settings.port, ssl_context=tls)
        await _start(site, settings)
        host, port = runner.addresses[0][:2]
        announce(f"{'http' if tls is None else 'https'}://{host}:{port}")
        await stop.wait()
    finally:
        if renewing is not None:
            renewing.cancel()
        await runner.cleanup()


def open_console_certificate(settings: ClusterConsoleSettings) -> Certificate | None:
    """What it serves with; None on loopback. Raises SpecError."""
    folder = settings.certificate
    if folder is not None:
        return Certificate(folder / "tls.crt", folder / "tls.key")
    if not is_loopback(settings.host):
        raise SpecError(
            f"--listen {settings.host}: people's tokens would travel in the clear; give --certificate, a folder with"
            " tls.crt and tls.key, or listen on 127.0.0.1"
        )
    return None


async def _start(site: web.TCPSite, settings: ClusterConsoleSettings) -> None:
    try:
        await site.start()
    except (OSError, OverflowError) as error:
        raise SpecError(
            f"--port {settings.port}: cannot listen on {settings.host}:{settings.port}: {error}; give another port,"
            " or 0 for a free one"
        ) from error
