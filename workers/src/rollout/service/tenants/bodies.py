"""Bodies of requests in memory: read piece by piece into room that all keys share, and held until their request has its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from rollout.service.refusals import CallRefused
from rollout.service.tenants.room import SharedRoom

BODY_SECONDS = 120.0


@asynccontextmanager
async def held_body(
    request: web.Request, room: SharedRoom, owner: str, seconds: float = BODY_SECONDS
) -> AsyncIterator[bytes]:
    """The body, which holds its bytes of the room as they come. Raises CallRefused, HTTPRequestEntityTooLarge."""
    parts: list[bytes] = []
    size = 0
    try:
        try:
            async with asyncio.timeout(seconds):
                async for part in request.content.iter_any():
                    room.take(owner, len(part))
                    size += len(part)
                    parts.append(part)
                    _check_size(request, size)
        except TimeoutError:
            raise CallRefused(f"the body did not come within {seconds:g} s", 408) from None
        body = b"".join(parts)
        parts.clear()
        yield body
    finally:
        room.give(owner, size)


def _check_size(request: web.Request, size: int) -> None:
    most = request.client_max_size
    if size > most:
        raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=size)
