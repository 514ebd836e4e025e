"""The gateway's routes: who asks, for what, and what they are told. Every answer has OpenAI's form and an ``x-request-id``.

Open to anybody: ``/healthz`` (the process lives), ``/readyz`` (an engine answers), ``/metrics`` and ``/openapi.json``, what is taken and
answered. All else needs a key.
Paths and bodies that are not named here are refused: nothing reaches an engine's other routes.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from rollout.inference.gateway.batches.desk import BatchDesk, Handler
from rollout.inference.gateway.batches.runner import BatchRunner
from rollout.inference.gateway.exchange import (
    DIGEST_HEADER,
    JSON_TYPE,
    LEFT,
    REQUEST_ID,
    SESSION_HEADER,
    VERSION_HEADER,
    Exchange,
    end_refused,
    read_header,
)
from rollout.inference.gateway.forwarding import CANARY_HEADER
from rollout.inference.gateway.keys import ApiKey, KeyRefused
from rollout.inference.gateway.request_log import BodyKeeper
from rollout.inference.gateway.rules.asks import Ask, read_ask, require_heard
from rollout.inference.gateway.rules.fields import ROUTES_OF_MODELS
from rollout.inference.gateway.rules.limits import allows
from rollout.inference.gateway.rules.openapi import build_description
from rollout.inference.gateway.rules.pooling import require_route
from rollout.inference.gateway.rules.refusals import ApiRefusal, invalid, unavailable
from rollout.inference.gateway.rules.streaming import AnswerNotes
from rollout.inference.gateway.state import GatewayState
from rollout.inference.gateway.table import ServedVersion
from rollout_api.logs import naming

log = logging.getLogger(__name__)

OWNER = "rollout"
CANDIDATE = "candidate"
"""What requests that are sent on are noted under while they are open."""
_CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

FILE_PATHS = ("/v1/files", "/v1/files/{rest:.*}", "/v1/batches", "/v1/batches/{rest:.*}")

Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_gateway(state: GatewayState, batches: BatchRunner | None = None) -> web.Application:
    """The application; the caller serves it, with ``handler_cancellation``: a client that leaves ends its request.

    ``batches``: what works on them, where files are kept; the caller runs it.
    """
    app = web.Application(
        client_max_size=state.settings.body_bytes_max, middlewares=[_refusals(state)]
    )
    for path in ROUTES_OF_MODELS:
        app.router.add_post(path, partial(_ask, state, path))
    app.router.add_get("/v1/models", partial(_models, state))
    app.router.add_get("/v1/models/{name}", partial(_model, state))
    if batches is not None:
        desk = BatchDesk(batches, state.settings.body_seconds, state.settings.write_seconds)
        for method, path, answer in desk.routes:
            app.router.add_route(method, path, partial(_for_key, state, answer))
    else:
        for path in FILE_PATHS:
            app.router.add_route("*", path, partial(_no_files, state))
    described = build_description(files=batches is not None, is_open=state.settings.is_open)
    app.router.add_get("/openapi.json", partial(_description, msgspec.json.encode(described)))
    app.router.add_get("/healthz", _health)
    app.router.add_get("/readyz", partial(_ready, state))
    app.router.add_get("/metrics", partial(_metrics, state))
    app.on_response_prepare.append(_closing(state))
    return app


def _closing(state: GatewayState) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Of a gateway that ends: whoever has a connection is told to open another one, which goes elsewhere."""

    async def close(request: web.Request, response: web.StreamResponse) -> None:
        del request
        if state.leaving:
            response.force_close()
            response.headers["Connection"] = "close"

    return close


def _refusals(state: GatewayState) -> Any:
    """A middleware that puts every refusal, aiohttp's own too, into OpenAI's form, and counts ours."""

    @web.middleware
    async def tell(request: web.Request, handler: Endpoint) -> web.StreamResponse:
        request[REQUEST_ID] = _request_id(request)
        headers = {"x-request-id": request[REQUEST_ID]}
        try:
            return await handler(request)
        except ApiRefusal as refusal:
            state.metrics.rejected.labels(refusal.reason).inc()
            return await end_refused(None, refusal, headers)
        except web.HTTPException as error:
            allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return await end_refused(None, _from_http(request, error), headers | allowed)
        except Exception:
            # The outermost place of a request: whatever was not foreseen is told, and the next one served.
            log.exception("request failed id=%s path=%s", request[REQUEST_ID], request.path[:100])
            refusal = ApiRefusal(500, "the gateway failed; its log says why", code="internal_error")
            return await end_refused(None, refusal, headers)

    return tell


def _request_id(request: web.Request) -> str:
    given = request.headers.get("X-Request-Id", "")
    return given if _CLIENT_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


def _from_http(request: web.Request, error: web.HTTPException) -> ApiRefusal:
    if error.status == 413:
        return ApiRefusal(
            413, "the body is too large", code="request_too_large", reason="too_large"
        )
    where = f"{request.method} {request.path[:100]}"
    words = {404: f"Unknown request URL: {where}", 405: f"Not allowed: {where}"}
    return ApiRefusal(error.status, words.get(error.status, error.reason), code="unknown_url")


def _identify(state: GatewayState, request: web.Request) -> ApiKey:
    try:
        return state.ring.identify(request.headers.get("Authorization", ""), time.time())
    except KeyRefused as error:
        raise ApiRefusal(401, str(error), code="invalid_api_key", reason="key") from error


async def _ask(state: GatewayState, path: str, request: web.Request) -> web.StreamResponse:
    began = time.monotonic()
    key = _identify(state, request)
    if state.draining:
        raise unavailable("the server is ending; try again", reason="draining", retry_after=5)
    if len(state.live) >= state.settings.live_max:
        raise unavailable("too many requests are open; try again", reason="full", retry_after=2)
    body = await _read_body(state, request)
    ask = read_ask(path, body)
    pool = state.resolve(ask.model, key)
    if not pool.away:  # else it is for the servers to say
        require_route(pool.version.task, pool.version.name, path)
        require_heard(pool.version.engine, ask)
    if (answer := await _ask_candidate(state, key, ask, request, body)) is not None:
        return answer
    span = state.begin_span(ask, pool.version, request.headers.get("traceparent", ""), began)
    left = state.budgets.reserve(key, ask.tokens, began)
    live = state.live.begin(key.id, pool.version.name, began)
    exchange = Exchange(
        state=state,
        request=request,
        request_id=request[REQUEST_ID],
        key=key,
        ask=ask,
        pool=pool,
        live=live,
        size_bytes=len(body),
        headers={"x-request-id": request[REQUEST_ID], **_version_headers(pool.version), **left},
        began_at=began,
        body=body,
        kept=BodyKeeper() if state.log is not None and state.log.bodies else None,
        span=span,
        notes=AnswerNotes() if span is not None and span.recording else None,
    )
    try:
        with naming(**({"trace": trace} if (trace := exchange.trace_id) else {})):
            return await _conduct(exchange)
    finally:
        state.live.end(live)
        state.budgets.settle(key, ask.tokens, exchange.tokens_used)
        exchange.record()


async def _ask_candidate(
    state: GatewayState, key: ApiKey, ask: Ask, request: web.Request, body: bytes
) -> web.StreamResponse | None:
    """The answer of a candidate's servers, where the session is theirs; its limits and deadlines are theirs, too."""
    session = read_header(request, SESSION_HEADER).encode() or ask.session
    if CANARY_HEADER in request.headers or not state.canary.takes(key.id.encode() + b"/" + session):
        return None
    live = state.live.begin(key.id, CANDIDATE, time.monotonic())
    try:
        answer = await state.others.answer(state.canary, request, body, live, request[REQUEST_ID])
    finally:
        state.live.end(live)
    state.metrics.canary.labels("fell_back" if answer is None else "answered").inc()
    return answer


async def _conduct(exchange: Exchange) -> web.StreamResponse:
    """Answer, and tell a client what came between."""
    try:
        return await exchange.answer()
    except ApiRefusal as error:
        refusal = error
    except ConnectionError:
        exchange.code = LEFT
        raise
    except asyncio.CancelledError:
        task, aborted = asyncio.current_task(), exchange.live.aborted
        if aborted is None or task is None:
            exchange.code = LEFT
            raise
        task.uncancel()
        refusal = aborted
    exchange.code, exchange.error = refusal.status, refusal.code or refusal.reason
    exchange.state.metrics.rejected.labels(refusal.reason).inc()
    return await end_refused(exchange, refusal, exchange.headers)


async def _read_body(state: GatewayState, request: web.Request) -> bytes:
    size = (
        state.settings.body_bytes_max if request.content_length is None else request.content_length
    )
    if size > state.settings.body_bytes_max:
        raise ApiRefusal(413, "the body is too large", code="request_too_large", reason="too_large")
    with _reading(state, size):
        try:
            async with asyncio.timeout(state.settings.body_seconds):
                return await request.read()
        except TimeoutError:
            seconds = f"{state.settings.body_seconds:g}"
            message = f"the body did not come within {seconds} s"
            raise ApiRefusal(408, message, code="request_timeout", reason="slow_client") from None


@contextmanager
def _reading(state: GatewayState, size: int) -> Iterator[None]:
    """Bodies that are being read have a bound together."""
    if state.bodies_bytes + size > state.settings.bodies_bytes_max:
        raise unavailable("too many large bodies at a time; try again", reason="full")
    state.bodies_bytes += size
    try:
        yield
    finally:
        state.bodies_bytes -= size


def _version_headers(version: ServedVersion) -> dict[str, str]:
    return {VERSION_HEADER: version.name, DIGEST_HEADER: version.digest}


async def _for_key(
    state: GatewayState, answer: Handler, request: web.Request
) -> web.StreamResponse:
    """What is a key's own, and no engine's answer."""
    key = _identify(state, request)
    if state.draining:
        raise unavailable("the server is ending; try again", reason="draining", retry_after=5)
    found = await answer(key, request)
    return found if isinstance(found, web.StreamResponse) else _json(request, found)


async def _no_files(state: GatewayState, request: web.Request) -> web.StreamResponse:
    _identify(state, request)
    message = "this server keeps no files and runs no batches: start it with --files FOLDER"
    raise ApiRefusal(404, message, code="files_off", reason="no_files")


async def _models(state: GatewayState, request: web.Request) -> web.StreamResponse:
    key = _identify(state, request)
    names = [name for name in state.table.names() if allows(key, name)]
    return _json(request, {"object": "list", "data": [_describe(state, name) for name in names]})


async def _model(state: GatewayState, request: web.Request) -> web.StreamResponse:
    key = _identify(state, request)
    name = request.match_info["name"]
    if len(name) > 256:
        raise invalid("a model's name has at most 256 characters", param="model")
    pool = state.resolve(name, key)
    return _json(request, _describe(state, name), _version_headers(pool.version))


def _describe(state: GatewayState, name: str) -> dict[str, Any]:
    version = state.table.find(name)
    assert version is not None
    described: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": version.created,
        "owned_by": OWNER,
        "root": version.name,
        "digest": version.digest,
        "task": version.task,
    }
    return described | ({"max_model_len": version.context_tokens} if version.context_tokens else {})


def _json(request: web.Request, value: Any, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value),
        content_type=JSON_TYPE,
        headers={"x-request-id": request[REQUEST_ID], **(headers or {})},
    )


async def _description(described: bytes, request: web.Request) -> web.StreamResponse:
    del request
    return web.Response(body=described, content_type=JSON_TYPE)


async def _health(request: web.Request) -> web.StreamResponse:
    del request
    return web.Response(text="ok\n")


async def _ready(state: GatewayState, request: web.Request) -> web.StreamResponse:
    del request
    return web.Response(
        status=200 if state.ready else 503, text="ready\n" if state.ready else "not ready\n"
    )


async def _metrics(state: GatewayState, request: web.Request) -> web.StreamResponse:
    body, kind = state.metrics.render_for(request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": kind})
