"""The console as a process: listens on loopback until it is told to end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from rollout.common.stacks import heed_end
from rollout.console.app import build_app
from rollout.console.door import Door
from rollout.console.memory import return_large_blocks
from rollout.errors import SpecError

HOST = "127.0.0.1"
GRACE_SECONDS = 1.0


async def serve_console(
    home: Path, port: int, announce: Callable[[str], None], service: Path | None = None
) -> None:
    """Serve the runs in ``home``, and the models of ``service``, until SIGINT or SIGTERM; port 0 takes a free one. Raises SpecError where it is taken."""
    return_large_blocks()
    listening = _listen(port)
    door = Door(listening.getsockname()[1])
    stop = asyncio.Event()
    heed_end(stop.set, asyncio.get_running_loop(), shows=lambda: False)
    runner = web.AppRunner(
        build_app(home, door, announce, service),
        access_log=None,
        handle_signals=False,
        handler_cancellation=True,
        shutdown_timeout=GRACE_SECONDS,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        announce(door.link)
        await stop.wait()
    finally:
        await runner.cleanup()


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        raise SpecError(
            f"--port {port}: cannot listen on {HOST}:{port}: {error}; give another port, or 0 for a free one"
        ) from error
