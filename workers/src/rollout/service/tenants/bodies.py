"""Bodies of requests in memory: read piece by piece into room that all keys share, and held until their request has its answer.

Each route has a size that its bodies may have; what is over it, slow or cut off is refused by that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from rollout.service.refusals import CallRefused
from rollout.service.tenants.room import SharedRoom

BODY_SECONDS = 120.0
"""From a body's beginning to its end."""
IDLE_SECONDS = 30.0
"""Without a byte of it."""
SMALL_BYTES_MAX = 1 << 20
"""Of every call that is not named below."""
BYTES_MAX = {"asample": 16 << 20, "telemetry": 16 << 20}
"""Prompts are numbers in JSON, which take up to twenty times their bytes once they are read."""
DATA = "forward_backward"
"""The call whose bodies may be as large as the service lets any be."""


@asynccontextmanager
async def held_body(request: web.Request, room: SharedRoom, owner: str) -> AsyncIterator[bytes]:
    """The body, which holds its bytes of the room as they come. Raises CallRefused (400, 408, 413, 429)."""
    route = request.path.rpartition("/")[2]
    most = min(_bytes_max(route), request.client_max_size)
    if request.content_length is not None and request.content_length > most:
        raise _too_large(route, most)
    parts: list[bytes] = []
    size = 0
    try:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while part := await _next_part(request):
                    room.take(owner, len(part))
                    size += len(part)
                    parts.append(part)
                    if size > most:
                        raise _too_large(route, most)
        except TimeoutError:
            raise CallRefused(
                f"the body did not come within {BODY_SECONDS:g} s, or {IDLE_SECONDS:g} s passed without a byte:"
                f" {size} bytes have come",
                408,
            ) from None
        except (ConnectionError, web.RequestPayloadError) as error:
            raise CallRefused("the body ended before it was whole") from error
        body = b"".join(parts)
        parts.clear()
        yield body
    finally:
        room.give(owner, size)


async def _next_part(request: web.Request) -> bytes:
    async with asyncio.timeout(IDLE_SECONDS):
        return await request.content.readany()


def _bytes_max(route: str) -> int:
    return 1 << 62 if route == DATA else BYTES_MAX.get(route, SMALL_BYTES_MAX)


def _too_large(route: str, most: int) -> CallRefused:
    fix = "fewer sequences in a call" if route == DATA else "less in a call"
    return CallRefused(f"a body of {route} has at most {most} bytes: send {fix}", 413)
