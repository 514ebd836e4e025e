"""The embedded engine behind a Unix socket: chat and text completions, whole or streamed, and tokenizing.

For the gateway alone, which has checked who asks; it listens in a folder that nobody else can open. A client that goes away
frees its place before the next token. Ends at SIGTERM with what is under way told as an error.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from rollout.inference.embedded_server.answers import DONE, AnswerShape, GrownSample, error_body
from rollout.inference.embedded_server.decoding import DecodeJob, DecodeThread
from rollout.inference.embedded_server.http import (
    JSON_TYPE,
    build_app,
    model_failed,
    read_object,
    serve,
    tokens_response,
)
from rollout.inference.embedded_server.orders import (
    DecodeOrder,
    OrderFacts,
    read_chat,
    read_completion,
    read_prompt,
    render_messages,
)
from rollout.inference.embedded_server.sampling import PickedToken
from rollout.inference.embedded_server.settings import EmbeddedSettings
from rollout.inference.embedded_server.texts import GrowingText


@dataclass(frozen=True, slots=True, kw_only=True)
class _Serving:
    settings: EmbeddedSettings
    facts: OrderFacts
    decoder: DecodeThread


_Token = tuple[int, PickedToken | None, str | None]
_Read = Callable[[Mapping[str, Any], OrderFacts], DecodeOrder]


async def serve_embedded(
    settings: EmbeddedSettings, facts: OrderFacts, decoder: DecodeThread
) -> None:
    """Serve until SIGTERM or SIGINT."""
    serving = _Serving(settings=settings, facts=facts, decoder=decoder)
    await serve(_build_app(serving), settings, decoder)


def _build_app(serving: _Serving) -> web.Application:
    app = build_app(serving.decoder)
    app.router.add_post("/v1/chat/completions", partial(_complete, serving, read_chat, chat=True))
    app.router.add_post("/v1/completions", partial(_complete, serving, read_completion, chat=False))
    app.router.add_post("/tokenize", partial(_tokenize, serving))
    return app


async def _tokenize(serving: _Serving, request: web.Request) -> web.StreamResponse:
    body = await read_object(request)
    facts = serving.facts
    messages = body.get("messages")
    ids = (
        render_messages(messages, facts)
        if messages is not None
        else read_prompt(body.get("prompt"), facts)
    )
    with_texts = bool(body.get("return_token_strs"))
    return tokens_response(ids, facts.tokenizer, facts.positions_max, with_texts=with_texts)


async def _complete(
    serving: _Serving, read: _Read, request: web.Request, *, chat: bool
) -> web.StreamResponse:
    order = read(await read_object(request), serving.facts)
    given = request.headers.get("X-Request-Id") or uuid.uuid4().hex
    shape = AnswerShape(
        id=f"{'chatcmpl' if chat else 'cmpl'}-{given[:64]}",
        model=serving.settings.name,
        created=int(time.time()),
        chat=chat,
        logprobs=order.sampling.top_logprobs >= 0,
        tokenizer=serving.facts.tokenizer,
    )
    job, tokens = _begin(serving, order)
    try:
        if order.stream:
            return await _stream(request, serving, shape, job, tokens)
        samples = [GrownSample(text=order.echo) for _ in order.seeds]
        async for place, text, picked, finish in _grow(serving, job, tokens):
            samples[place].text += text
            samples[place].tokens += picked
            samples[place].finish = finish
        return web.Response(
            body=shape.whole(samples, len(order.prompt_ids)), content_type=JSON_TYPE
        )
    except _DecoderFailedError:
        return model_failed()
    finally:
        job.gone = True


def _begin(serving: _Serving, order: DecodeOrder) -> tuple[DecodeJob, asyncio.Queue[_Token]]:
    """Give an order to the thread, whose tokens come back through a queue of this loop."""
    loop = asyncio.get_running_loop()
    tokens: asyncio.Queue[_Token] = asyncio.Queue()  # bounded by the order's own tokens

    def tell(place: int, picked: PickedToken | None, finish: str | None) -> None:
        loop.call_soon_threadsafe(tokens.put_nowait, (place, picked, finish))

    stop_ids = frozenset(serving.facts.renderer.stop_token_ids)
    job = DecodeJob(order=order, tell=tell, stop_ids=stop_ids)
    serving.decoder.submit(job)
    return job, tokens


class _DecoderFailedError(Exception):
    """The thread could not go on with this order."""


async def _grow(
    serving: _Serving, job: DecodeJob, tokens: asyncio.Queue[_Token]
) -> AsyncIterator[tuple[int, str, list[PickedToken], str | None]]:
    """Pieces of completions as they come: place, text, its tokens, and how it ended."""
    stops = job.order.sampling.stop
    texts = [GrowingText(serving.facts.renderer.decode, stops) for _ in job.order.seeds]
    open_places = set(range(len(texts)))
    while open_places:
        place, picked, finish = await tokens.get()
        if picked is None:
            raise _DecoderFailedError
        if place not in open_places:
            continue
        grown = texts[place]
        text = "" if finish == "stop" else grown.push(picked.token_id)
        if grown.ended:
            finish = "stop"
            job.left.add(place)
        elif finish is not None:
            text += grown.rest()
        if finish is not None:
            open_places.discard(place)
        yield place, text, [picked], finish


async def _stream(
    request: web.Request,
    serving: _Serving,
    shape: AnswerShape,
    job: DecodeJob,
    tokens: asyncio.Queue[_Token],
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    order, num_tokens = job.order, 0
    for event in shape.opening(len(order.seeds)):
        await response.write(event)
    if order.echo:
        for place in range(len(order.seeds)):
            await response.write(shape.chunk(place, order.echo, (), None))
    try:
        async for place, text, picked, finish in _grow(serving, job, tokens):
            num_tokens += len(picked)
            if text or finish or shape.logprobs:
                await response.write(shape.chunk(place, text, picked, finish))
    except _DecoderFailedError:
        body = error_body(500, "the model failed; the engine's log says why", None, "engine_failed")
        await response.write(b"data: " + body + b"\n\n")
    if order.include_usage:
        await response.write(shape.usage_event(len(order.prompt_ids), num_tokens))
    await response.write(DONE)
    await response.write_eof()
    return response
