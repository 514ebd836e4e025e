"""The application: the pages behind the door."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from aiohttp import web

from rollout.console import asking, live
from rollout.console.answering import (
    SAFE,
    Handler,
    add_static,
    tell_errors,
    with_headers,
)
from rollout.console.door import Door
from rollout.console.models import calls as model_calls
from rollout.console.models import overview as model_overview
from rollout.console.models import places
from rollout.console.models import sampling as model_sampling
from rollout.console.models import saving as model_saving
from rollout.console.models.counting import ModelCounts
from rollout.console.views import (
    acting,
    comparing,
    evaluating,
    listing,
    logs,
    overview,
    sampling,
    saved,
    steps,
    sweeping,
    tokens,
    workers,
)

FORM_BYTES_MAX = 1 << 16
VIEWS = (
    acting,
    comparing,
    evaluating,
    listing,
    logs,
    overview,
    sampling,
    saved,
    steps,
    sweeping,
    tokens,
    workers,
    model_calls,
    model_overview,
    model_sampling,
    model_saving,
)


def build_app(
    home: Path, door: Door, announce: Callable[[str], None], service: Path | None = None
) -> web.Application:
    """The console of the runs in ``home`` and the models of the training service in ``service`` (None: ``service`` in it).

    ``announce`` is given the link for the next browser.
    """
    app = web.Application(
        middlewares=[with_headers, tell_errors, partial_guard(door, announce)],
        client_max_size=FORM_BYTES_MAX,
    )
    app[asking.HOME] = home
    app[places.SERVICE] = service or home / "service"
    app[places.COUNTS] = ModelCounts()
    app[asking.READERS] = asyncio.Semaphore(asking.READERS_MAX)
    app[live.FOLLOWERS] = set()
    app[acting.ASKED] = {}
    for view in VIEWS:
        app.add_routes(view.routes)
    add_static(app)
    return app


def partial_guard(
    door: Door, announce: Callable[[str], None]
) -> Callable[..., Awaitable[web.StreamResponse]]:
    """The middleware that lets nobody else in."""
    return web.middleware(partial(_guard, door=door, announce=announce))


async def _guard(
    request: web.Request, handler: Handler, *, door: Door, announce: Callable[[str], None]
) -> web.StreamResponse:
    if not door.is_ours(request.host):
        raise web.HTTPForbidden(text=f"this console answers as 127.0.0.1:{door.port} only")
    if request.method not in SAFE and not door.comes_from_here(request.headers.get("Origin", "")):
        raise web.HTTPForbidden(text="a change has to come from a page of this console")
    if request.path.startswith("/static/"):
        return await handler(request)
    if door.knows(request.cookies.get(door.cookie, "")):
        return await handler(request)
    key = request.query.get("key", "")
    session = door.open_with(key) if request.path == "/" and key else None
    if session is None:
        raise web.HTTPUnauthorized(
            text="open the link that `rollout ui` has printed last: each opens one browser, once"
        )
    announce(door.link)
    response = web.HTTPSeeOther("/")
    response.set_cookie(door.cookie, session, httponly=True, samesite="Strict", path="/")
    raise response
