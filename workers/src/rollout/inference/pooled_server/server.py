"""A model of vectors or scores behind a Unix socket: ``/v1/embeddings``, and vLLM's ``/score``, ``/rerank`` and ``/classify``.

For the gateway alone, which has checked who asks. A client that goes away frees its place before its next sequence. What a
model gives that is no number is an error of that request, and nobody else's.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from aiohttp import web
from torch import Tensor

from rollout.common.stacks import heed_end
from rollout.inference.embedded_server.answers import error_body
from rollout.inference.embedded_server.orders import OrderRefused
from rollout.inference.embedded_server.settings import EmbeddedSettings
from rollout.inference.pooled_server.answers import (
    NotFiniteError,
    build_head,
    tell_classes,
    tell_embeddings,
    tell_ranking,
    tell_scores,
)
from rollout.inference.pooled_server.computing import ComputingFull, ComputingThread, PooledJob
from rollout.inference.pooled_server.orders import (
    PooledFacts,
    PooledOrder,
    read_classes,
    read_embeddings,
    read_ranking,
    read_scores,
)

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 16 << 20
JSON_TYPE = "application/json"

Read = Callable[[Mapping[str, Any], PooledFacts], PooledOrder]
Told = Callable[[PooledOrder, Tensor, PooledFacts, dict[str, Any]], bytes]

ROUTES: Mapping[str, tuple[str, Read, Told]] = {
    "/v1/embeddings": ("embd", read_embeddings, tell_embeddings),
    "/classify": ("classify", read_classes, tell_classes),
    "/score": ("score", read_scores, tell_scores),
    "/v1/score": ("score", read_scores, tell_scores),
    "/rerank": ("rerank", read_ranking, tell_ranking),
    "/v1/rerank": ("rerank", read_ranking, tell_ranking),
    "/v2/rerank": ("rerank", read_ranking, tell_ranking),
}
"""By its path: what an answer's id begins with, what reads a body, and what tells the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Serving:
    settings: EmbeddedSettings
    facts: PooledFacts
    computing: ComputingThread


async def serve_pooled(
    settings: EmbeddedSettings, facts: PooledFacts, computing: ComputingThread
) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    heed_end(stop.set, asyncio.get_running_loop(), shows=lambda: False)
    serving = _Serving(settings=settings, facts=facts, computing=computing)
    runner = web.AppRunner(
        build_pooled_app(settings, facts, computing),
        access_log=None,
        handle_signals=False,
        handler_cancellation=True,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    await web.UnixSite(runner, settings.socket).start()
    log.info("serving model=%s task=%s socket=%s", settings.name, settings.task, settings.socket)
    await stop.wait()
    serving.computing.stop()
    await runner.cleanup()


def build_pooled_app(
    settings: EmbeddedSettings, facts: PooledFacts, computing: ComputingThread
) -> web.Application:
    """The application; the caller serves it, with ``handler_cancellation``."""
    serving = _Serving(settings=settings, facts=facts, computing=computing)
    app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[_refusals])
    app.router.add_get("/health", partial(_health, serving))
    app.router.add_post("/tokenize", partial(_tokenize, serving))
    for path in ROUTES:
        app.router.add_post(path, partial(_answer, serving, path))
    return app


@web.middleware
async def _refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return await handler(request)
    except OrderRefused as error:
        return _error(400, str(error), error.param, error.code)
    except ComputingFull as error:
        return _error(503, str(error), None, "full")
    except NotFiniteError as error:
        return _error(500, str(error), None, "engine_failed")
    except (msgspec.DecodeError, RecursionError) as error:
        return _error(400, f"the body is not JSON: {error}", None, "invalid_json")


def _error(status: int, message: str, param: str | None, code: str | None) -> web.Response:
    body = error_body(status, message, param, code)
    return web.Response(status=status, body=body, content_type=JSON_TYPE)


async def _health(serving: _Serving, request: web.Request) -> web.StreamResponse:
    del request
    return web.Response(status=200 if serving.computing.alive else 503)


async def _tokenize(serving: _Serving, request: web.Request) -> web.StreamResponse:
    body = await _body(request)
    text, tokenizer = body.get("prompt"), serving.facts.tokenizer
    if not isinstance(text, str):
        raise OrderRefused("'prompt' must be a text", "prompt")
    ids = await asyncio.to_thread(tokenizer.encode_whole, text)
    texts = [tokenizer.tokenizer.id_to_token(one) for one in ids]
    answer = {
        "count": len(ids),
        "max_model_len": serving.facts.model.context,
        "tokens": ids,
        "token_strs": texts if body.get("return_token_strs") else None,
    }
    return web.Response(body=msgspec.json.encode(answer), content_type=JSON_TYPE)


async def _body(request: web.Request) -> dict[str, Any]:
    found = msgspec.json.decode(await request.read())
    if not isinstance(found, dict):
        raise OrderRefused("the body must be a JSON object")
    return found


async def _answer(serving: _Serving, path: str, request: web.Request) -> web.StreamResponse:
    prefix, read, tell = ROUTES[path]
    body, facts = await _body(request), serving.facts
    # A long text is tokenised for a second: nobody else's answer waits for that.
    order = await asyncio.to_thread(read, body, facts)
    numbers = await _compute(serving, order)
    if numbers is None:
        return _error(500, "the model failed; the engine's log says why", None, "engine_failed")
    given = request.headers.get("X-Request-Id") or uuid.uuid4().hex
    head = build_head(prefix, given[:64], serving.settings.name)
    told = await asyncio.to_thread(tell, order, numbers, facts, head)
    return web.Response(body=told, content_type=JSON_TYPE)


async def _compute(serving: _Serving, order: PooledOrder) -> Tensor | None:
    loop = asyncio.get_running_loop()
    told: asyncio.Future[Tensor | None] = loop.create_future()

    def tell(rows: Tensor | None) -> None:
        loop.call_soon_threadsafe(_settle, told, rows)

    job = PooledJob(inputs=order.inputs, tell=tell)
    serving.computing.submit(job)
    try:
        return await told
    finally:
        job.gone = True


def _settle(told: asyncio.Future[Tensor | None], rows: Tensor | None) -> None:
    if not told.done():
        told.set_result(rows)
