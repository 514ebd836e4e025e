"""Sends a request to other servers, whole and with the client's own key, and its answer back as it comes.

Until the head of a good answer is there the client loses nothing: a candidate that cannot be reached, or that answers with
a failure of its own, leaves the request to the engines that are here. Servers that a request was held for, and that are not
reached, or go before they answer it, have it held once more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from rollout.inference.engine_client import ANSWER_BYTES_MAX, EngineLost, NotReached
from rollout.inference.gateway.exchange import STREAM_HEADERS, read_header
from rollout.inference.gateway.rules.canary import CanaryOrder
from rollout.inference.gateway.rules.refusals import ApiRefusal, engine_refusal

if TYPE_CHECKING:
    from rollout.inference.gateway.exchange import Exchange
    from rollout.inference.gateway.live import LiveRequest
    from rollout.inference.gateway.pools import EngineSlot

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


class ServersClient:
    """Servers that have gateways of their own: a candidate's, or those that requests are held for. Made in a running loop; ``close`` at the end."""

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
        headers = _headers(request, request_id) | {CANARY_HEADER: "1"}
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

    async def relay(self, exchange: Exchange, slot: EngineSlot) -> web.StreamResponse:
        """The answer of the servers behind a place. Raises EngineLost while they may be asked again, ApiRefusal."""
        headers = _headers(exchange.request, exchange.request_id) | {"Connection": "close"}
        url = slot.engine.replica.socket + exchange.request.path
        try:
            upstream = await self._session.post(url, data=exchange.body, headers=headers)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotReached(f"{error!r}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineLost(f"{error!r}") from error
        try:
            exchange.headers = _passed_back(upstream)
            if exchange.ask.stream and upstream.status == 200:
                await _relay_stream(upstream, exchange, slot)
                assert exchange.response is not None
                return exchange.response
            body = await _read_whole(upstream)
            if exchange.response is not None:  # a stream that servers before these have begun
                raise engine_refusal(upstream.status, body)
            exchange.begun(slot)
            exchange.code = upstream.status
            return web.Response(status=upstream.status, body=body, headers=exchange.headers)
        finally:
            upstream.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()


async def _pass_on(
    upstream: aiohttp.ClientResponse, request: web.Request, live: LiveRequest
) -> web.StreamResponse:
    """Head and bytes as they come; one that breaks off is broken off."""
    response = web.StreamResponse(status=upstream.status, headers=_passed_back(upstream))
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


def _headers(request: web.Request, request_id: str) -> dict[str, str]:
    """What other servers are told of a request."""
    headers = {name: read_header(request, name) for name in _PASSED if name in request.headers}
    return headers | {"X-Request-Id": request_id}


def _passed_back(upstream: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: value for name, value in upstream.headers.items() if name.lower() not in _HOP}


async def _read(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """An answer's bytes as they come. Raises EngineLost: that the client has left is another matter, of whoever writes."""
    try:
        async for data in upstream.content.iter_any():
            yield data
    except (aiohttp.ClientError, OSError) as error:
        raise EngineLost(f"{error!r}") from error


async def _read_whole(upstream: aiohttp.ClientResponse) -> bytes:
    """A whole answer, within bounds. Raises EngineLost, ApiRefusal."""
    parts, size = [], 0
    async for data in _read(upstream):
        parts.append(data)
        size += len(data)
        if size > ANSWER_BYTES_MAX:
            raise ApiRefusal(
                502, "the server's answer is too large", code="engine_error", reason="engine"
            )
    return b"".join(parts)


async def _relay_stream(
    upstream: aiohttp.ClientResponse, exchange: Exchange, slot: EngineSlot
) -> None:
    """Bytes as they come; the client's stream may have been begun for servers that went before they said anything. Raises EngineLost."""
    live, response = exchange.live, exchange.response
    if response is None:
        response = web.StreamResponse(headers={**exchange.headers, **STREAM_HEADERS})
        exchange.response = response
        await response.prepare(exchange.request)
        live.write = response.write
    async for data in _read(upstream):
        if not exchange.first_byte_at:
            exchange.begun(slot)
        live.writing, live.moved_at = True, time.monotonic()
        await response.write(data)
        live.writing = False
    exchange.code = 200
    await response.write_eof()
