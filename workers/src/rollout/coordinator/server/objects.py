"""Objects over HTTP, for runs whose workers share neither a folder nor a bucket with the coordinator.

``/v1/objects/<64 hex>``: HEAD and GET (ranges too) for actors and learner, PUT and DELETE for the learner.
Bodies are streamed through a staging file, bounded in size and number, and visible only when their hash is
their name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path

from aiohttp import web

from rollout.errors import NoSpace, ObjectDamaged, StoreError
from rollout.objects.filesystem import FilesystemStore, Incoming

log = logging.getLogger(__name__)

PATH = "/v1/objects/{name:[0-9a-f]{64}}"
OBJECT_BYTES_MAX = 1 << 40
"""Largest object that is taken."""
TRANSFERS_MAX = 32
"""Uploads in flight; more are told to come back (503)."""
CHUNK_BYTES = 1 << 20
CHUNK_SECONDS = 60.0
"""How long the next piece of an upload may take."""

AGAIN_SECONDS = 1

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_routes(app: web.Application, store: FilesystemStore) -> None:
    """Serve ``store``; who may do what is decided before (``rollout.protocol.routes``)."""
    desk = _Desk(store)
    for method, handle in (
        ("HEAD", desk.head),
        ("GET", desk.get),
        ("PUT", desk.put),
        ("DELETE", desk.delete),
    ):
        app.router.add_route(method, PATH, _translated(handle))


def _translated(handle: Handle) -> Handle:
    async def translated(request: web.Request) -> web.StreamResponse:
        try:
            return await handle(request)
        except NoSpace as error:
            return _say(HTTPStatus.INSUFFICIENT_STORAGE, str(error))
        except ObjectDamaged as error:
            return _say(HTTPStatus.CONFLICT, str(error))
        except StoreError as error:
            log.error("object call failed path=%s reason=%s", request.path, error)  # noqa: TRY400 - expected
            return _say(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    return translated


class _Desk:
    def __init__(self, store: FilesystemStore) -> None:
        self._store = store
        self._transfers = 0

    async def head(self, request: web.Request) -> web.StreamResponse:
        digest = _digest(request)
        if not await asyncio.to_thread(self._store.has, digest):
            return _say(HTTPStatus.NOT_FOUND, "")
        size = await asyncio.to_thread(self._store.size, digest)
        return web.Response(headers={"Content-Length": str(size)})

    async def get(self, request: web.Request) -> web.StreamResponse:
        """The verified file; aiohttp answers ranges and leaves the copying to the kernel."""
        digest = _digest(request)
        if not await asyncio.to_thread(self._store.has, digest):
            return _say(HTTPStatus.NOT_FOUND, f"object {digest} is not there")
        path: Path = await asyncio.to_thread(self._store.path, digest)
        return web.FileResponse(path, chunk_size=CHUNK_BYTES)

    async def put(self, request: web.Request) -> web.StreamResponse:
        size = request.content_length
        if size is None:
            return _say(HTTPStatus.LENGTH_REQUIRED, "say Content-Length")
        if size > OBJECT_BYTES_MAX:
            return _say(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {OBJECT_BYTES_MAX} bytes")
        if self._transfers >= TRANSFERS_MAX:
            busy = _say(HTTPStatus.SERVICE_UNAVAILABLE, f"{TRANSFERS_MAX} uploads are in flight")
            busy.headers["Retry-After"] = str(AGAIN_SECONDS)
            return busy
        self._transfers += 1
        try:
            return await self._take(request, _digest(request), size)
        finally:
            self._transfers -= 1

    async def _take(self, request: web.Request, digest: str, size: int) -> web.StreamResponse:
        async with AsyncExitStack() as stack:
            incoming = stack.enter_context(self._store.receive(size))
            await _receive(request, incoming)
            actual = await asyncio.to_thread(incoming.commit, digest)
        if actual != digest:
            return _say(HTTPStatus.UNPROCESSABLE_ENTITY, f"the bytes hash to {actual}")
        return _say(HTTPStatus.CREATED, "")

    async def delete(self, request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(self._store.delete, _digest(request))
        return _say(HTTPStatus.NO_CONTENT, "")


async def _receive(request: web.Request, incoming: Incoming) -> None:
    """Write the body as it comes. Ends with the connection's error, or TimeoutError, when it does not."""
    position, chunks = 0, request.content.iter_chunked(CHUNK_BYTES)
    while True:
        async with asyncio.timeout(CHUNK_SECONDS):
            chunk = await anext(chunks, None)
        if chunk is None:
            return
        await asyncio.to_thread(incoming.write_at, position, chunk)
        position += len(chunk)


def _digest(request: web.Request) -> str:
    return f"blake3:{request.match_info['name']}"


def _say(status: HTTPStatus, text: str) -> web.Response:
    return web.Response(status=status, text=text)
