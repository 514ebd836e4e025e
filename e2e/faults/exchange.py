"""One call in the proxy's hands: forwarded whole, in lines, without its answer, or not at all."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, MultiMapping

from faults.kinds import LineFilter
from faults.upstream import Upstream

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "te", "trailer"}
GONE_POLL_SECONDS = 0.1
HANG_POLLS_MAX = 36_000


class HttpExchange:
    """A request of a client and the API server it is meant for."""

    def __init__(self, request: web.Request, upstream: Upstream) -> None:
        self._request = request
        self._upstream = upstream
        self.was_cut = False
        self.answering = False

    async def forward(self) -> web.StreamResponse:
        """Let the API server answer the client, byte for byte."""
        async with await self._call() as answer:
            return await self._send(answer, answer.content.iter_any())

    async def perform(self) -> int:
        """Let the API server act and keep its answer from the client; returns the status."""
        async with await self._call() as answer:
            await answer.read()
            return answer.status

    async def relay(self, lines: LineFilter) -> web.StreamResponse:
        """Forward, each line of the answer through a filter."""
        async with await self._call() as answer:
            return await self._send(answer, lines(_read_lines(answer.content)))

    async def hang(self) -> web.StreamResponse:
        """Answer nothing (more) until the client has gone."""
        for _ in range(HANG_POLLS_MAX):
            if self._client_gone():
                break
            await asyncio.sleep(GONE_POLL_SECONDS)
        return self.cut()

    def cut(self) -> web.StreamResponse:
        """Break the connection, without the end that a whole answer has."""
        self.was_cut = True
        if self._request.transport is not None:
            self._request.transport.abort()
        return web.Response(status=500)

    async def _call(self) -> aiohttp.ClientResponse:
        headers = _pass_on(self._request.headers)
        session = self._upstream.session_for(headers)
        return await session.request(
            self._request.method,
            self._upstream.server + self._request.raw_path,
            headers=headers,
            data=await self._request.read() or None,
            allow_redirects=False,
        )

    async def _send(
        self, answer: aiohttp.ClientResponse, chunks: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=_pass_on(answer.headers))
        self.answering = True
        await response.prepare(self._request)
        async for chunk in chunks:
            await response.write(chunk)
        return response

    def _client_gone(self) -> bool:
        transport = self._request.transport
        return transport is None or transport.is_closing()


async def _read_lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    while line := await content.readline():
        yield line


def _pass_on(headers: MultiMapping[str]) -> CIMultiDict[str]:
    return CIMultiDict((k, v) for k, v in headers.items() if k.lower() not in HOP_BY_HOP)
