"""An engine that answers as vLLM's server does, without a model: for the gateway's tests and its bench.

``python simulated_engine.py SOCKET`` (or ``HOST:PORT``) runs one as a process. What a request asks for by its prompt's text: ``tokens=N``,
``delay=S`` between tokens, ``die``: the connection is cut after the second token, ``exit``: the process ends there, ``fail``: an error
event, ``status=N``: that status, ``junk``: no stream of events, ``hang``: no answer. A body with ``tools`` is answered by a call of the first, until
a tool's answer is in it; one with a schema for its answer by ``STRUCTURED``; bodies for vectors and scores as an engine of those does.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import struct
import sys
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TOKENS = 4
CALLED = '{"a": 3, "b": 4}'
STRUCTURED = '{"answer": 7}'
VECTOR = (0.6, 0.8)


POOLED = (
    *("/v1/embeddings", "/classify", "/score", "/v1/score"),
    *("/rerank", "/v1/rerank", "/v2/rerank"),
)


@dataclass
class Simulated:
    """What the engine has met. ``freed`` counts requests whose client left before the end.

    ``silent``: it hangs, health check and all. ``drops``: it cuts every stream before its first token.
    """

    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)
    open: int = 0
    most: int = 0
    freed: int = 0
    healthy: bool = True
    keeps: bool = True
    silent: bool = False
    drops: bool = False


def build_engine(engine: Simulated) -> web.Application:
    app = web.Application(client_max_size=64 << 20)

    async def health(request: web.Request) -> web.StreamResponse:
        while engine.silent:
            await asyncio.sleep(0.01)
        return web.Response(status=200 if engine.healthy else 503)

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if engine.keeps:
            engine.seen.append(body)
            engine.headers.append(request.headers)
        engine.open += 1
        engine.most = max(engine.most, engine.open)
        try:
            return await _behave(engine, request, body)
        except asyncio.CancelledError:
            engine.freed += 1
            raise
        finally:
            engine.open -= 1

    app.router.add_get("/health", health)
    for path in (
        "/v1/chat/completions",
        "/v1/completions",
        "/tokenize",
        "/v1/responses",
        *POOLED,
    ):
        app.router.add_post(path, answer)
    return app


async def _behave(
    engine: Simulated, request: web.Request, body: dict[str, Any]
) -> web.StreamResponse:
    if engine.silent:
        await asyncio.Event().wait()
    if not engine.drops:
        return await _answer(request, body)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    assert request.transport is not None
    request.transport.abort()
    return response


async def _answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    text = json.dumps(body.get("messages", body.get("prompt", body.get("input", ""))))
    wish = dict(re.findall(r"(\w+)=([\d.]+)", text))
    delay, tokens = float(wish.get("delay", 0)), int(wish.get("tokens", TOKENS))
    if "status" in wish:
        error = {
            "message": "as asked",
            "type": "BadRequestError",
            "param": None,
            "code": int(wish["status"]),
        }
        return web.json_response({"error": error}, status=int(wish["status"]))
    if "hang" in text:
        await asyncio.Event().wait()
    if request.path in POOLED:
        return web.json_response(_pool(request.path, body))
    chat = request.path == "/v1/chat/completions"
    if request.path == "/v1/responses":
        return await _respond(request, body, text, delay, tokens)
    head = {
        "id": f"chatcmpl-{request.headers.get('X-Request-Id')}",
        "created": 1,
        "model": body["model"],
    }
    usage = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
    if not body.get("stream"):
        await asyncio.sleep(delay * tokens)
        message, finish = _say(body, tokens)
        said = {"message": message} if chat else {"text": "w " * tokens}
        choice = {"index": 0, **said, "finish_reason": finish}
        name = "chat.completion" if chat else "text_completion"
        return web.json_response({**head, "object": name, "choices": [choice], "usage": usage})
    return await _stream(
        request,
        body,
        head | {"object": "chat.completion.chunk" if chat else "text_completion"},
        usage,
        text,
        delay,
        tokens,
    )


def _say(body: dict[str, Any], tokens: int) -> tuple[dict[str, Any], str]:
    """An assistant's message, and why it ends."""
    tool = (body.get("tools") or [{}])[0].get("function")
    if isinstance(tool, dict) and body["messages"][-1].get("role") != "tool":
        function = {"name": tool.get("name"), "arguments": CALLED}
        call = {"id": "call_1", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    structured = (body.get("response_format") or {}).get("type") == "json_schema"
    return {"role": "assistant", "content": STRUCTURED if structured else "w " * tokens}, "stop"


def _deltas(body: dict[str, Any], tokens: int) -> list[dict[str, Any]]:
    """The same message, in pieces."""
    first, *rest = _pieces(_say(body, tokens)[0], tokens)
    return [{"role": "assistant", **first}, *rest]


def _pieces(message: dict[str, Any], tokens: int) -> list[dict[str, Any]]:
    if "tool_calls" not in message:
        text = message["content"]
        return [{"content": one} for one in ([text] if text == STRUCTURED else ["w "] * tokens)]
    [call] = message["tool_calls"]
    function = call["function"]
    begun = {"index": 0, **call, "function": {"name": function["name"], "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": one}} for one in (CALLED[:5], CALLED[5:])]
    return [{"tool_calls": [one]} for one in (begun, *rest)]


def _pool(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Vectors and scores, as vLLM's server gives them: one for each entry."""
    usage = {"prompt_tokens": 7, "total_tokens": 7}
    given = body.get("input", body.get("documents", body.get("text_2", body.get("messages"))))
    whole = isinstance(given, str) or (isinstance(given[0], int) if given else True)
    num = 1 if whole or (path == "/classify" and "messages" in body) else len(given)
    kind = {"/v1/embeddings": "embedding", "/classify": "classify"}.get(path, "score")
    head = {"id": "pool-1", "object": "list", "created": 1, "model": body["model"], "usage": usage}
    if "rerank" in path:
        results = [
            {"index": one, "relevance_score": 0.5, "document": {"text": "d"}} for one in range(num)
        ]
        return {"id": "rerank-1", "model": body["model"], "usage": usage, "results": results}
    vector: Any = list(VECTOR)
    if body.get("encoding_format") == "base64":
        vector = base64.b64encode(struct.pack("<2f", *VECTOR)).decode()
    what = {
        "embedding": {"embedding": vector},
        "classify": {"label": "LABEL_0", "probs": [1.0], "num_classes": 1},
        "score": {"score": 0.5},
    }
    return {**head, "data": [{"index": one, "object": kind, **what[kind]} for one in range(num)]}


async def _stream(request, body, head, usage, text, delay, tokens) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    chat = head["object"] == "chat.completion.chunk"
    deltas = _deltas(body, tokens) if chat else [{"text": "w "}] * tokens
    for place, delta in enumerate(deltas):
        if delay:
            await asyncio.sleep(delay)
        if place == 2 and await _misbehave(request, response, text):
            return response
        ends = _say(body, tokens)[1] if chat else "stop"
        finish = ends if place == len(deltas) - 1 else None
        choice = {"index": 0, **({"delta": delta} if chat else delta), "finish_reason": finish}
        await response.write(_event({**head, "choices": [choice]}))
    if (body.get("stream_options") or {}).get("include_usage"):
        await response.write(_event({**head, "choices": [], "usage": usage}))
    await response.write(b"data: [DONE]\n\n")
    return response


async def _respond(request, body, text, delay, tokens) -> web.StreamResponse:
    """``/v1/responses``: named events, and no ``[DONE]``."""
    usage = {"input_tokens": 7, "output_tokens": tokens, "total_tokens": 7 + tokens}
    usage |= {
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    said = {"type": "output_text", "text": "w " * tokens, "annotations": []}
    message = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [said],
    }
    base = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": body["model"],
        "tools": [],
    }
    base |= {
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "output": [],
        "status": "in_progress",
    }
    done = {**base, "status": "completed", "output": [message], "usage": usage}
    if not body.get("stream"):
        return web.json_response(done)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    opening = {"item_id": "msg_1", "output_index": 0}
    events = [
        {"type": "response.created", "response": base},
        {
            "type": "response.output_item.added",
            **opening,
            "item": {**message, "content": [], "status": "in_progress"},
        },
        {"type": "response.content_part.added", **place, "part": {**said, "text": ""}},
        *(
            {"type": "response.output_text.delta", **place, "delta": "w ", "logprobs": []}
            for _ in range(tokens)
        ),
        {"type": "response.output_text.done", **place, "text": said["text"], "logprobs": []},
        {"type": "response.output_item.done", **opening, "item": message},
        {"type": "response.completed", "response": done},
    ]
    for number, one in enumerate(events):
        await asyncio.sleep(delay)
        if number == 4 and await _misbehave(request, response, text):
            return response
        data = json.dumps({**one, "sequence_number": number})
        await response.write(f"event: {one['type']}\ndata: {data}\n\n".encode())
    return response


async def _misbehave(request, response, text) -> bool:
    if "die" in text:
        request.transport.abort()
    elif "exit" in text:
        os._exit(1)
    elif "fail" in text:
        error = {
            "message": "engine broke",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
        await response.write(_event({"error": error}) + b"data: [DONE]\n\n")
    elif "junk" in text:
        await response.write(b"junk")
    else:
        return False
    return True


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


async def start_engine(engine: Simulated, path: str) -> web.AppRunner:
    """Serve at a socket; ``cleanup`` of what is returned ends it."""
    runner = web.AppRunner(
        build_engine(engine), handler_cancellation=True, access_log=None, shutdown_timeout=0.1
    )
    await runner.setup()
    host, colon, port = path.rpartition(":")
    site = web.TCPSite(runner, host, int(port)) if colon else web.UnixSite(runner, path)
    await site.start()
    return runner


async def _run(path: str) -> None:
    await start_engine(Simulated(keeps=False), path)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(_run(sys.argv[1]))
