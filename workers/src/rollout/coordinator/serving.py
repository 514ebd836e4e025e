"""Runs a coordinator behind its address until it is told to end."""

from __future__ import annotations

import asyncio
import logging
import signal

from aiohttp import web

from rollout.coordinator.core import Coordinator
from rollout.coordinator.service import build_app
from rollout.errors import CoordinatorError, LedgerSuperseded

log = logging.getLogger(__name__)

GRACE_SECONDS = 1.0
"""How long calls in flight may take after SIGTERM; every call is safe to repeat elsewhere."""

KEEPALIVE_SECONDS = 600.0
"""Idle connections are kept: workers are few, and a new connection costs a millisecond a step."""


async def serve(coordinator: Coordinator, secret: str, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT, then close.

    Raises CoordinatorError when the address is taken, LedgerSuperseded when a newer one took over.
    """
    app = build_app(coordinator, secret)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=GRACE_SECONDS,
        keepalive_timeout=KEEPALIVE_SECONDS,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, reuse_address=True).start()
    except OSError as error:
        await coordinator.close()
        raise CoordinatorError(f"cannot listen on {host}:{port}: {error}") from error
    log.info("listening host=%s port=%d boot=%s", host, port, coordinator.boot)
    try:
        await _signalled(coordinator.run.superseded)
    finally:
        await coordinator.close()
        await runner.cleanup()
    if coordinator.run.superseded.is_set():
        raise LedgerSuperseded("another coordinator of this run has taken the ledger over")


async def _signalled(superseded: asyncio.Event) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    waits = [asyncio.create_task(event.wait()) for event in (stop, superseded)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
