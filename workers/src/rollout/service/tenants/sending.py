"""Large answers on their way: they hold their bytes of a room that all keys share until their client has taken them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from aiohttp import web

from rollout.service.tenants.room import SharedRoom

log = logging.getLogger(__name__)

SMALL_BYTES = 1 << 20
"""Answers up to here are sent as they are: sockets hold them."""
PIECE_BYTES = 1 << 18
SEND_SECONDS = 120.0
"""From an answer's beginning to its end; a client that takes longer is cut off, and may ask again."""


async def send_large(
    request: web.Request, body: bytes, room: SharedRoom, owner: str, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Send a body piece by piece, as its client takes it. Raises CallRefused (429) where there is no room for it now."""
    room.take(owner, len(body))
    response = web.StreamResponse(headers=headers)
    response.content_length = len(body)
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await response.prepare(request)
            for at in range(0, len(body), PIECE_BYTES):
                await response.write(body[at : at + PIECE_BYTES])
            await response.write_eof()
    except (TimeoutError, ConnectionError) as error:
        log.info("answer of %d bytes was not taken: %s", len(body), type(error).__name__)
        if request.transport is not None:
            request.transport.abort()
    finally:
        room.give(owner, len(body))
    return response
