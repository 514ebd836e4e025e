"""Who comes in: whoever shows a bearer token that the cluster knows, as a header, or once in a form and then by a cookie.

A cookie names a session and holds no token; sessions are in memory, and end with the console, after a working day, or
when the cluster no longer knows their token. What changes something has to come from a page of ours.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from aiohttp import web

from rollout.console.answering import SAFE, Handler
from rollout.console.asking import reading
from rollout.console.cluster.reviews import Reviews, Right, Viewer
from rollout.console.render import render

SESSIONS_MAX = 1024
"""People at a time; one more ends the session that was used least lately."""
SESSION_SECONDS_MAX = 8 * 3600.0
KEY_BYTES = 32
REQUESTS_MAX = 256
"""At a time, those of pages that are kept live among them."""
SIGN_IN, SIGN_OUT, HEALTH = "/sign-in", "/sign-out", "/healthz"
BEARER = "Bearer "
NOBODY_SAID = "the cluster does not know this token, or it has expired: give another one"

REVIEWS: web.AppKey[Reviews] = web.AppKey("reviews", Reviews)
SECURE: web.AppKey[bool] = web.AppKey("secure", bool)
"""Whether pages travel by TLS, so that cookies may be held to it."""
REQUESTS: web.AppKey[set[object]] = web.AppKey("requests", set)
VIEWER: web.RequestKey[Viewer] = web.RequestKey("viewer", Viewer)
TOKEN: web.RequestKey[str] = web.RequestKey("token", str)


class Sessions:
    """Tokens by the cookie that stands for each."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def begin(self, token: str) -> str:
        """A new session; its cookie."""
        cookie = secrets.token_urlsafe(KEY_BYTES)
        self._tokens[cookie] = (self._clock() + SESSION_SECONDS_MAX, token)
        while len(self._tokens) > SESSIONS_MAX:
            self._tokens.popitem(last=False)
        return cookie

    def token_of(self, cookie: str) -> str:
        """The token of a session; empty where there is none, or it is over."""
        ends_at, token = self._tokens.get(cookie, (0.0, ""))
        if not token:
            return ""
        if self._clock() >= ends_at:
            self.end(cookie)
            return ""
        self._tokens.move_to_end(cookie)
        return token

    def end(self, cookie: str) -> None:
        """Forget a session."""
        self._tokens.pop(cookie, None)


SESSIONS: web.AppKey[Sessions] = web.AppKey("sessions", Sessions)


def cookie_name(app: web.Application) -> str:
    """``__Host-``: a browser takes it over TLS only, for this host alone and from no other."""
    return "__Host-rollout" if app[SECURE] else "rollout-cluster"


@web.middleware
async def bound(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what would wait behind REQUESTS_MAX others: a flood of strange tokens asks the cluster no faster than people do."""
    requests = request.app[REQUESTS]
    if len(requests) >= REQUESTS_MAX and request.path != HEALTH:
        raise web.HTTPServiceUnavailable(
            text="the console is busy: try again in a moment", headers={"Retry-After": "5"}
        )
    ours = object()
    requests.add(ours)
    try:
        return await handler(request)
    finally:
        requests.discard(ours)


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let in whom the cluster knows; the form for a token, the style and the probe of the kubelet are for all."""
    if request.method not in SAFE and not comes_from_here(request):
        raise web.HTTPForbidden(
            text="a change has to come from a page of this console; a proxy before it has to keep the Host header"
        )
    if request.path in {SIGN_IN, HEALTH} or request.path.startswith("/static/"):
        return await handler(request)
    token = token_of(request)
    viewer = None if not token else await identify(request, token)
    if viewer is None:
        return refuse_stranger(request)
    request[VIEWER], request[TOKEN] = viewer, token
    return await handler(request)


def comes_from_here(request: web.Request) -> bool:
    """Whether the ``Origin`` of a change is the host that it was sent to."""
    scheme = "https" if request.app[SECURE] else "http"
    wanted = f"{scheme}://{request.host}"
    return hmac.compare_digest(request.headers.get("Origin", "").encode(), wanted.encode())


def token_of(request: web.Request) -> str:
    """The bearer token of a header, else that of the session; empty where there is neither."""
    header = request.headers.get("Authorization", "")
    if header:
        return header.removeprefix(BEARER).strip() if header.startswith(BEARER) else ""
    return request.app[SESSIONS].token_of(request.cookies.get(cookie_name(request.app), ""))


async def identify(request: web.Request, token: str) -> Viewer | None:
    """Who holds a token. Raises KubeError where the cluster cannot be asked."""
    reviews = request.app[REVIEWS]
    return await reading(request, lambda: reviews.identify(token))


async def may(request: web.Request, right: Right) -> bool:
    """Whether the viewer of a request has a right."""
    reviews, viewer = request.app[REVIEWS], request[VIEWER]
    return await reading(request, lambda: reviews.may(viewer, right))


async def require(request: web.Request, right: Right) -> None:
    """Raise HTTPForbidden, whether or not the object is there, where the viewer has no right to it."""
    if not await may(request, right):
        raise web.HTTPForbidden(
            text=f"{request[VIEWER].name} may not {right}; ask the platform for that right"
        )


def refuse_stranger(request: web.Request) -> web.Response:
    """To a browser the form for a token, to a program 401."""
    response = form_page(said="" if request.path == "/" else "sign in to see this page")
    response.headers["WWW-Authenticate"] = 'Bearer realm="rollout"'
    return response


def form_page(*, said: str) -> web.Response:
    """The form that takes a token."""
    text = render("cluster/sign_in.html", said=said, viewer=None)
    return web.Response(status=401, text=text, content_type="text/html")


routes = web.RouteTableDef()


@routes.get(HEALTH)
async def answer_probe(request: web.Request) -> web.Response:
    """That the process answers; nothing of the cluster."""
    del request
    return web.Response(text="ok")


@routes.get(SIGN_IN)
async def show_form(request: web.Request) -> web.Response:
    """The form."""
    del request
    response = form_page(said="")
    response.set_status(200)
    return response


@routes.post(SIGN_IN)
async def sign_in(request: web.Request) -> web.Response:
    """Take a token, and give a cookie for it."""
    given = (await request.post()).get("token", "")
    token = given.strip() if isinstance(given, str) else ""
    if await identify(request, token) is None:
        return form_page(said=NOBODY_SAID)
    cookie = request.app[SESSIONS].begin(token)
    response = web.HTTPSeeOther("/")
    response.set_cookie(
        cookie_name(request.app),
        cookie,
        httponly=True,
        secure=request.app[SECURE],
        samesite="Lax",
        path="/",
    )
    raise response


@routes.post(SIGN_OUT)
async def sign_out(request: web.Request) -> web.Response:
    """End the session of this browser."""
    name = cookie_name(request.app)
    request.app[SESSIONS].end(request.cookies.get(name, ""))
    response = web.HTTPSeeOther(SIGN_IN)
    response.del_cookie(name, path="/", secure=request.app[SECURE])
    raise response
