"""What every console answers alike: headers of the door, errors as pages, and its own style and scripts."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from rollout.console.door import HEADERS
from rollout.console.render import render
from rollout.errors import ObjectNotFound, RolloutError, SpecError
from rollout.report.page import STYLE

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
STATIC = Path(__file__).with_name("static")
TYPES = {"console.css": "text/css", "live.js": "text/javascript", "keys.js": "text/javascript"}
SAFE = frozenset({"GET", "HEAD"})


@web.middleware
async def with_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
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
async def tell_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as pages: what was wrong, and what to do."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        said = error.text if error.status not in {404, 405} else "there is no such page here"
        return problem_page(error.status, str(said))
    except SpecError as error:
        return problem_page(404 if request.method in SAFE else 400, str(error))
    except ObjectNotFound as error:
        return problem_page(404, str(error))
    except RolloutError as error:
        log.warning("page path=%s error=%s", request.path, error)
        return problem_page(500, str(error))


def problem_page(status: int, said: str) -> web.Response:
    """A page that says what was wrong."""
    return web.Response(
        status=status,
        text=render("problem.html", said=said, status=status),
        content_type="text/html",
    )


def add_static(app: web.Application) -> None:
    """Serve the style and the scripts below ``/static/``."""
    app.router.add_get("/static/{name}", _serve_static)


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
