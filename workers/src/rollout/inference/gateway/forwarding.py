"""Sends a request to a candidate's servers, whole and with the client's own key, and its answer back as it comes.

Until the head of a good answer is there the client loses nothing: a candidate that cannot be reached, or that answers with
a failure of its own, leaves the request to the engines that are here.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from rollout.inference.gateway.exchange import read_header
from rollout.inference.gateway.rules.canary import CanaryOrder

if TYPE_CHECKING:
    from rollout.inference.gateway.live import LiveRequest

log = logging.getLogger(__name__)

CANARY_HEADER = "X-Rollout-Canary"
"""Of a request that a gateway has sent on: no other sends it on again."""
CONNECT_SECONDS_MAX = 2.0
READ_BYTES = 1 << 18
_PASSED = (
    "Authorization",
    "Content-Type",
    "User-Agent",
    "X-Request-Id",
    "traceparent",
    "x-session-id",
)
_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "server", "date", "te"}
)


class CandidateClient:
    """The servers of whatever is a candidate. Made in a running loop; ``close`` at the end."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=5),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS_MAX),
            auto_decompress=False,
            read_bufsize=READ_BYTES,
        )

    async def answer(
        self,
        order: CanaryOrder,
        request: web.Request,
        body: bytes,
        live: LiveRequest,
        request_id: str,
    ) -> web.StreamResponse | None:
        """The candidate's answer, passed on; None where it is for the servers that are here."""
        headers = {name: read_header(request, name) for name in _PASSED if name in request.headers}
        headers |= {CANARY_HEADER: "1", "X-Request-Id": request_id}
        try:
            upstream = await self._session.post(
                order.url + request.path, data=body, headers=headers
            )
        except (aiohttp.ClientError, OSError) as error:
            log.warning("candidate is not reached id=%s error=%r", request_id, error)
            return None
        try:
            if upstream.status >= 500:
                log.warning("candidate failed id=%s status=%d", request_id, upstream.status)
                return None
            return await _pass_on(upstream, request, live)
        finally:
            upstream.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()


async def _pass_on(
    upstream: aiohttp.ClientResponse, request: web.Request, live: LiveRequest
) -> web.StreamResponse:
    """Head and bytes as they come; one that breaks off is broken off."""
    headers = {name: value for name, value in upstream.headers.items() if name.lower() not in _HOP}
    response = web.StreamResponse(status=upstream.status, headers=headers)
    await response.prepare(request)
    live.write = response.write
    try:
        async for data in upstream.content.iter_any():
            live.writing, live.moved_at = True, time.monotonic()
            await response.write(data)
            live.writing = False
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError):
        log.warning("candidate's answer broke off path=%s", request.path)
        if request.transport is not None:
            request.transport.abort()
        return response
    await response.write_eof()
    return response
