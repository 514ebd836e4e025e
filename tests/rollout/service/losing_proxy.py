"""A way to a service on which answers are lost: before the service has the request, after it, or as 503."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

KEPT = ("X-API-Key", "Content-Type")


@dataclass(kw_only=True)
class LosingProxy:
    """Loses the first answer to every request, in one way after the other; ``lost`` counts them by path."""

    target: str
    lost: Counter = field(default_factory=Counter)
    ways: itertools.cycle = field(
        default_factory=lambda: itertools.cycle(("before", "after", "503"))
    )
    seen: set = field(default_factory=set)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        way = "" if (request.path, body) in self.seen else next(self.ways)
        self.seen.add((request.path, body))
        self.lost[request.path] += bool(way)
        if way == "503":
            return web.Response(status=503, text="busy")
        if way == "before":
            return self._cut(request)
        headers = {name: request.headers[name] for name in KEPT if name in request.headers}
        async with (
            aiohttp.ClientSession() as http,
            http.request(
                request.method, self.target + request.path, data=body, headers=headers
            ) as said,
        ):
            answer = await said.read()
            if way == "after":
                return self._cut(request)
            chain = {"X-Rollout-Chain": said.headers.get("X-Rollout-Chain", "")}
            return web.Response(
                body=answer, status=said.status, content_type=said.content_type, headers=chain
            )

    def _cut(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()


@asynccontextmanager
async def losing_proxy(target: str) -> AsyncIterator[tuple[LosingProxy, str]]:
    proxy = LosingProxy(target=target)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    server = TestServer(app)
    await server.start_server()
    try:
        yield proxy, str(server.make_url("")).rstrip("/")
    finally:
        await server.close()
