"""A model of vectors or scores behind a Unix socket: ``/v1/embeddings``, and vLLM's ``/score``, ``/rerank`` and ``/classify``.

For the gateway alone, which has checked who asks. A client that goes away frees its place before its next sequence. What a
model gives that is no number is an error of that request, and nobody else's.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web
from torch import Tensor

from rollout.inference.embedded_server.http import (
    JSON_TYPE,
    build_app,
    error_response,
    model_failed,
    read_object,
    serve,
    tokens_response,
)
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
from rollout.inference.pooled_server.computing import ComputingThread, PooledJob
from rollout.inference.pooled_server.orders import (
    PooledFacts,
    PooledOrder,
    read_classes,
    read_embeddings,
    read_ranking,
    read_scores,
)

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
    await serve(build_pooled_app(settings, facts, computing), settings, computing)


def build_pooled_app(
    settings: EmbeddedSettings, facts: PooledFacts, computing: ComputingThread
) -> web.Application:
    """The application; the caller serves it, with ``handler_cancellation``."""
    serving = _Serving(settings=settings, facts=facts, computing=computing)
    app = build_app(computing)
    app.router.add_post("/tokenize", partial(_tokenize, serving))
    for path in ROUTES:
        app.router.add_post(path, partial(_answer, serving, path))
    return app


async def _tokenize(serving: _Serving, request: web.Request) -> web.StreamResponse:
    body = await read_object(request)
    text, tokenizer = body.get("prompt"), serving.facts.tokenizer
    if not isinstance(text, str):
        raise OrderRefused("'prompt' must be a text", "prompt")
    ids = await asyncio.to_thread(tokenizer.encode_whole, text)
    with_texts = bool(body.get("return_token_strs"))
    context = serving.facts.model.context
    return tokens_response(ids, tokenizer, context, with_texts=with_texts)


async def _answer(serving: _Serving, path: str, request: web.Request) -> web.StreamResponse:
    prefix, read, tell = ROUTES[path]
    body, facts = await read_object(request), serving.facts
    # A long text is tokenised for a second: nobody else's answer waits for that.
    order = await asyncio.to_thread(read, body, facts)
    numbers = await _compute(serving, order)
    if numbers is None:
        return model_failed()
    given = request.headers.get("X-Request-Id") or uuid.uuid4().hex
    head = build_head(prefix, given[:64], serving.settings.name)
    try:
        told = await asyncio.to_thread(tell, order, numbers, facts, head)
    except NotFiniteError as error:
        return error_response(500, str(error), None, "engine_failed")
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
