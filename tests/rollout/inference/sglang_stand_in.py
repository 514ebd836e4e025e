"""What SGLang 0.5.23's server does, written from its source: it stands where its interpreter does, and has no model.

``stand_in(folder)`` gives the path to name in ``ROLLOUT_SGLANG_PYTHON``. Options come from a YAML file (``utils/server_args_config_parser.py``: a
key becomes ``--key``, a flag where it is true; an unknown one ends it with 2, as argparse does); keys are asked as ``utils/auth.py`` does; bodies are read by pydantic models
that ignore unknown fields, and errors are flat (``openai/protocol.py``, ``http_server.py``). What a request asks for by its prompt: ``tokens=N``, ``delay=S``,
``die``: the connection is cut after the second token, ``exit``: the process ends there, ``fail``: an error event. What it has met is in ``notes.jsonl``, a line each.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import stat
import sys
from pathlib import Path
from typing import Any

OPTIONS = {
    **dict.fromkeys(("model-path", "served-model-name", "host", "api-key", "device"), str),
    **dict.fromkeys(("log-level", "tool-call-parser"), str),
    **dict.fromkeys(("port", "context-length", "max-running-requests", "tp-size"), int),
    "max-queued-requests": int,
    "enable-cache-report": bool,
}
"""The flags of it that we use, as its parser spells them, and what each takes; ``bool``: a flag alone."""
FLAT = {"object": "error", "param": None}
STARTING = 2
"""Health checks that are answered with 503 before it is up."""


def stand_in(folder: Path) -> Path:
    """An executable that takes an interpreter's place; its notes lie beside it."""
    path = folder / "python"
    notes = folder / "notes.jsonl"
    words = f"NOTES={notes} exec {sys.executable} {Path(__file__)}"
    path.write_text(f'#!/bin/sh\n{words} "$@"\n')
    path.chmod(0o755)
    return path


def read_notes(folder: Path) -> list[dict[str, Any]]:
    path = folder / "notes.jsonl"
    return [json.loads(one) for one in path.read_text().splitlines()] if path.exists() else []


def _note(**what: Any) -> None:
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(json.dumps(what) + "\n")


def _read_options(words: list[str]) -> dict[str, Any]:
    import yaml

    assert words[:3] == ["-m", "sglang.launch_server", "--config"], words
    path = Path(words[3])
    assert path.suffix in {".yaml", ".yml"}
    options = yaml.safe_load(path.read_text())
    for name, value in options.items():
        if not isinstance(value, OPTIONS.get(name, ())):
            print(f"sglang serve: error: unrecognized arguments: --{name}", file=sys.stderr)
            sys.exit(2)
    _note(words=words, options=options, mode=stat.S_IMODE(path.stat().st_mode))
    _note(environment={name: os.environ.get(name) for name in ("PYTHONPATH", "HF_HUB_OFFLINE")})
    return options


def _error(message: str, status: int = 400, kind: str = "BadRequest") -> Any:
    from aiohttp import web

    told = {**FLAT, "message": message, "type": kind, "code": status}
    return web.json_response(told, status=status)


def _guard(key: str) -> Any:
    """``decide_request_auth`` with one key: all but health and metrics ask for it."""
    from aiohttp import web

    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        right = kind.lower() == "bearer" and secrets.compare_digest(given, key)
        if not right and not request.path.startswith(("/health", "/ready", "/metrics")):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    return guard


def _build(options: dict[str, Any]) -> Any:
    from aiohttp import web

    asked = {"health": 0}

    async def health(request: web.Request) -> web.Response:
        asked["health"] += 1
        return web.Response(status=503 if asked["health"] <= STARTING else 200)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.content_type != "application/json":
            return _error("Unsupported Media Type", kind="Bad Request")
        body = await request.json()
        _note(path=request.path, body=body)
        try:
            return await _answer(request, body, options)
        except asyncio.CancelledError:
            _note(freed=request.path)
            raise

    app = web.Application(middlewares=[_guard(options["api-key"])], client_max_size=64 << 20)
    app.router.add_get("/health", health)
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
        app.router.add_post(path, answer)
    return app


async def _answer(request: Any, body: dict[str, Any], options: dict[str, Any]) -> Any:
    from aiohttp import web

    text = json.dumps(body.get("messages", body.get("prompt")))
    wish = dict(re.findall(r"(\w+)=([\d.]+)", text))
    if request.path == "/tokenize":
        ids = list(text.encode())
        return web.json_response(
            {"tokens": ids, "count": len(ids), "max_model_len": options["context-length"]}
        )
    chat = request.path == "/v1/chat/completions"
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 16
    if limit >= options["context-length"]:
        return _error(
            f"Requested token count exceeds the model's maximum context length of {options['context-length']} tokens."
        )
    tokens = int(wish.get("tokens", 4))
    usage = {"prompt_tokens": 7, "total_tokens": 7 + tokens, "completion_tokens": tokens}
    usage |= {"prompt_tokens_details": {"cached_tokens": 3}, "reasoning_tokens": 0}
    head = {"id": secrets.token_hex(16), "created": 1, "model": body["model"]}
    ends = {"finish_reason": "stop", "matched_stop": 2}
    if body.get("stream"):
        return await _stream(request, body, head, usage, text, float(wish.get("delay", 0)))
    await asyncio.sleep(float(wish.get("delay", 0)) * tokens)
    said = {"role": "assistant", "content": "w " * tokens, "reasoning_content": None}
    choice = {"index": 0, **({"message": said} if chat else {"text": "w " * tokens}), **ends}
    kind = "chat.completion" if chat else "text_completion"
    whole = {**head, "object": kind, "choices": [{"logprobs": None, **choice}], "usage": usage}
    return web.json_response({**whole, "metadata": {"weight_version": "default"}})


async def _stream(request, body, head, usage, text, delay) -> Any:
    from aiohttp import web

    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    chat = request.path == "/v1/chat/completions"
    head["object"] = "chat.completion.chunk" if chat else "text_completion"
    deltas = [{"role": "assistant", "content": ""}] if chat else []
    deltas += [{"content": "w "}] * usage["completion_tokens"]
    for place, delta in enumerate([*deltas, {}]):
        await asyncio.sleep(delay)
        if place == 2 and "die" in text:
            request.transport.abort()
            return response
        if place == 2 and "exit" in text:
            os._exit(1)
        if place == 2 and "fail" in text:
            await response.write(_event({"error": {**FLAT, "message": "broke", "code": 500}}))
            break
        said = {"delta": delta} if chat else {"text": delta.get("content", "")}
        last = {"finish_reason": None if delta else "stop", "matched_stop": None}
        await response.write(_event({**head, "choices": [{"index": 0, **said, **last}]}))
    else:
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(_event({**head, "choices": [], "usage": usage}))
    await response.write(b"data: [DONE]\n\n")
    return response


def _event(value: Any) -> bytes:
    spaced = "error" in value  # json.dumps there, a compact encoder elsewhere
    separators = None if spaced else (",", ":")
    return b"data: " + json.dumps(value, separators=separators).encode() + b"\n\n"


async def _run(options: dict[str, Any]) -> None:
    from aiohttp import web

    runner = web.AppRunner(_build(options), handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, options["host"], options["port"]).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_run(_read_options(sys.argv[1:])))
