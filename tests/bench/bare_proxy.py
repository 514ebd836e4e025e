"""The least that an aiohttp proxy does: bytes in, bytes out, nothing read. ``python bare_proxy.py SOCKET PORT``."""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import web


async def serve(socket: str, port: int) -> None:
    """Pass every POST on to the engine's socket."""
    engine = aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(path=socket, limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )

    async def pass_on(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {"Content-Type": "application/json"}
        async with engine.post("http://engine" + request.path, data=body, headers=headers) as got:
            if got.headers["Content-Type"].startswith("application/json"):
                return web.Response(body=await got.read(), content_type="application/json")
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            async for data in got.content.iter_any():
                await response.write(data)
            await response.write_eof()
            return response

    async def ready(request: web.Request) -> web.StreamResponse:
        return web.Response()

    app = web.Application()
    app.router.add_post("/{path:.*}", pass_on)
    app.router.add_get("/readyz", ready)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(serve(sys.argv[1], int(sys.argv[2])))
