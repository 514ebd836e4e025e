"""Server-sent events: a browser is told that a run has moved, and asks for the page again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from aiohttp import web

from rollout.console.door import HEADERS
from rollout.errors import RolloutError

POLL_SECONDS = 1.0
QUIET_SECONDS_MAX = 15.0
"""A comment goes out after so long, so that a client that has left is noticed."""
FOLLOWERS_MAX = 16
SECONDS_MAX = 3600.0
"""Then the stream ends; a browser opens another one by itself."""

FOLLOWERS: web.AppKey[set[object]] = web.AppKey("followers", set)


Mark = Callable[[], Awaitable[tuple[int, str] | None]]
"""Reads what changes whenever a run has moved; None where nothing is to be told."""


async def follow(
    request: web.Request,
    read_mark: Mark,
    *,
    poll_seconds: float | None = None,
    followers_max: int | None = None,
) -> web.StreamResponse:
    """Write an event ``moved`` whenever the mark is another one, until the client leaves or the console ends.

    ``poll_seconds`` and ``followers_max`` None: POLL_SECONDS, FOLLOWERS_MAX.
    """
    most = FOLLOWERS_MAX if followers_max is None else followers_max
    followers = request.app[FOLLOWERS]
    if len(followers) >= most:
        raise web.HTTPServiceUnavailable(
            text=f"{most} pages are kept live: close one", headers={"Retry-After": "30"}
        )
    ours = object()
    followers.add(ours)
    try:
        return await _write(
            request, read_mark, POLL_SECONDS if poll_seconds is None else poll_seconds
        )
    finally:
        followers.discard(ours)


async def _write(request: web.Request, read_mark: Mark, poll_seconds: float) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
    )
    response.headers.update(HEADERS)
    await response.prepare(request)
    loop = asyncio.get_running_loop()
    ends_at, said_at = loop.time() + SECONDS_MAX, loop.time()
    before: tuple[int, str] | None = None
    while loop.time() < ends_at:
        mark = await _read(read_mark)
        if mark is not None and mark != before:
            event = json.dumps({"position": mark[0], "state": mark[1]})
            await response.write(f"event: moved\ndata: {event}\n\n".encode())
            before, said_at = mark, loop.time()
        elif loop.time() - said_at > QUIET_SECONDS_MAX:
            await response.write(b": quiet\n\n")
            said_at = loop.time()
        await asyncio.sleep(poll_seconds)
    return response


async def _read(read_mark: Mark) -> tuple[int, str] | None:
    """The mark; None for a ledger that is not there yet or any more: the page says why."""
    try:
        return await read_mark()
    except RolloutError:
        return None
