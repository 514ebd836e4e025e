"""What every server of a model on this machine has: one Unix socket until it is told to end, JSON in and out, errors as OpenAI's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from aiohttp import web

from rollout.common.stacks import heed_end
from rollout.inference.embedded_server.answers import error_body
from rollout.inference.embedded_server.orders import OrderRefused, OrdersFull
from rollout.inference.embedded_server.settings import EmbeddedSettings
from rollout.rendering.tokenizer import ModelTokenizer

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 16 << 20
JSON_TYPE = "application/json"


class ModelThread(Protocol):
    """The thread that computes."""

    @property
    def alive(self) -> bool:
        """Whether it does."""
        ...

    def stop(self) -> None:
        """End it soon."""
        ...


async def serve(app: web.Application, settings: EmbeddedSettings, thread: ModelThread) -> None:
    """Serve until SIGTERM or SIGINT, then end the thread. A client that goes away cancels its handler."""
    stop = asyncio.Event()
    heed_end(stop.set, asyncio.get_running_loop(), shows=lambda: False)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        handler_cancellation=True,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    await web.UnixSite(runner, settings.socket).start()
    log.info("serving model=%s task=%s socket=%s", settings.name, settings.task, settings.socket)
    await stop.wait()
    thread.stop()
    await runner.cleanup()


def build_app(thread: ModelThread) -> web.Application:
    """An application whose health is that of its thread; the caller adds what it answers."""

    async def health(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(status=200 if thread.alive else 503)

    app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[_refusals])
    app.router.add_get("/health", health)
    return app


@web.middleware
async def _refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return await handler(request)
    except OrderRefused as error:
        return error_response(400, str(error), error.param, error.code)
    except OrdersFull as error:
        return error_response(503, str(error), None, "full")
    except (msgspec.DecodeError, RecursionError) as error:
        return error_response(400, f"the body is not JSON: {error}", None, "invalid_json")


def error_response(status: int, message: str, param: str | None, code: str | None) -> web.Response:
    """An error as clients read it."""
    body = error_body(status, message, param, code)
    return web.Response(status=status, body=body, content_type=JSON_TYPE)


def model_failed() -> web.Response:
    """The model could not go on with this order."""
    message = "the model failed; the engine's log says why"
    return error_response(500, message, None, "engine_failed")


def tokens_response(
    ids: Sequence[int], tokenizer: ModelTokenizer, length_max: int, *, with_texts: bool
) -> web.Response:
    """What ``/tokenize`` answers."""
    answer = {
        "count": len(ids),
        "max_model_len": length_max,
        "tokens": ids,
        "token_strs": (
            [tokenizer.tokenizer.id_to_token(one) for one in ids] if with_texts else None
        ),
    }
    return web.Response(body=msgspec.json.encode(answer), content_type=JSON_TYPE)


async def read_object(request: web.Request) -> dict[str, Any]:
    """A body. Raises OrderRefused, and msgspec.DecodeError for what is no JSON."""
    found = msgspec.json.decode(await request.read())
    if not isinstance(found, dict):
        raise OrderRefused("the body must be a JSON object")
    return found
