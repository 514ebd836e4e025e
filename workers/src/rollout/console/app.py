"""The application: the pages behind the door, and how errors are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from aiohttp import web

from rollout.console import asking, live
from rollout.console.door import HEADERS, Door
from rollout.console.models import calls as model_calls
from rollout.console.models import overview as model_overview
from rollout.console.models import places
from rollout.console.models import sampling as model_sampling
from rollout.console.models import saving as model_saving
from rollout.console.models.counting import ModelCounts
from rollout.console.render import render
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
    tokens,
    workers,
)
from rollout.errors import RolloutError, SpecError
from rollout.report.page import STYLE

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
STATIC = Path(__file__).with_name("static")
FORM_BYTES_MAX = 1 << 16
TYPES = {"console.css": "text/css", "live.js": "text/javascript", "keys.js": "text/javascript"}
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
    tokens,
    workers,
    model_calls,
    model_overview,
    model_sampling,
    model_saving,
)
SAFE = frozenset({"GET", "HEAD"})


def build_app(
    home: Path, door: Door, announce: Callable[[str], None], service: Path | None = None
) -> web.Application:
    """The console of the runs in ``home`` and the models of the training service in ``service`` (None: ``service`` in it).

    ``announce`` is given the link for the next browser.
    """
    app = web.Application(
        middlewares=[_with_headers, _tell_errors, partial_guard(door, announce)],
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
    app.router.add_get("/static/{name}", _serve_static)
    return app


@web.middleware
async def _with_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every answer has the headers of the door, refusals too."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        error.headers.update(HEADERS)
        raise
    if not response.prepared:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
    return response


@web.middleware
async def _tell_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as pages: what was wrong, and what to do."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        said = error.text if error.status not in {404, 405} else "there is no such page here"
        return _problem(error.status, str(said))
    except SpecError as error:
        return _problem(404 if request.method in SAFE else 400, str(error))
    except RolloutError as error:
        log.warning("page path=%s error=%s", request.path, error)
        return _problem(500, str(error))


def _problem(status: int, said: str) -> web.Response:
    return web.Response(
        status=status,
        text=render("problem.html", said=said, status=status),
        content_type="text/html",
    )


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


async def _serve_static(request: web.Request) -> web.Response:
    """The style (the report's, then ours) and the script: nothing of a run."""
    name = request.match_info["name"]
    if name not in TYPES:
        raise web.HTTPNotFound
    text = (STATIC / name).read_text(encoding="utf-8")
    if name == "console.css":
        text = STYLE.read_text(encoding="utf-8") + text
    response = web.Response(text=text, content_type=TYPES[name])
    response.headers["Cache-Control"] = "private, max-age=300"
    return response
