"""One simulated server for both sides of ``bench_episodes``: ``python episodes_server.py FOLDER``, which says its port.

It answers at once and always the same: ``/v1/chat/completions`` as vLLM's OpenAI server with ids and log-probabilities on
TCP, and vLLM's ``/inference/v1/generate`` on a socket in the folder. Its processor time is nobody's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import uvloop
from aiohttp import web
from episodes_job import reply_ids

from rollout.engines.vllm.command import socket_path

IDS = reply_ids()
TEXT = "".join(map(chr, IDS))
LOGPROBS = [{"token": chr(one), "token_id": one, "logprob": -0.5, "bytes": [one]} for one in IDS]
LOGPROBS = [{**one, "top_logprobs": []} for one in LOGPROBS]
GENERATED = json.dumps(
    {
        "choices": [
            {
                "finish_reason": "stop",
                "token_ids": IDS,
                "logprobs": {"content": LOGPROBS},
                "weight_versions": [{"version": "0.0", "start": 0, "end": len(IDS)}],
            }
        ]
    }
).encode()


async def generate(request: web.Request) -> web.Response:
    """Tokens for tokens."""
    await request.read()
    return web.Response(body=GENERATED, content_type="application/json")


async def chat(request: web.Request) -> web.Response:
    """A message for messages, with the ids of both, a token a character."""
    asked = await request.json()
    prompt = "".join(message["content"] for message in asked["messages"])
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": TEXT},
        "finish_reason": "stop",
        "token_ids": IDS,
        "logprobs": {"content": LOGPROBS},
    }
    num = len(prompt)
    answer = {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": asked["model"],
        "choices": [choice],
        "prompt_token_ids": list(map(ord, prompt)),
        "usage": {
            "prompt_tokens": num,
            "completion_tokens": len(IDS),
            "total_tokens": num + len(IDS),
        },
    }
    return web.json_response(answer)


async def serve(folder: Path) -> None:
    """Until this is killed."""
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/inference/v1/generate", generate)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, str(socket_path(folder))).start()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[-1][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(serve(Path(sys.argv[1])))
