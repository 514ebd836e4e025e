"""Batches through OpenAI's own client, as it comes: lines, files, and waiting for the end."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import openai
from gateway_kit import WAIT_SECONDS, Served

CHAT = "/v1/chat/completions"


def client_of(served: Served, key: str | None = None) -> openai.AsyncOpenAI:
    client = openai.AsyncOpenAI(
        base_url=served.url + "/v1", api_key=key or served.key, max_retries=0
    )
    served.clients.append(client)
    return client


def line(custom_id: Any, text: str, **fields: Any) -> dict:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": text}],
        **fields.pop("body", {}),
    }
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **fields}


def pack(lines: list[Any]) -> bytes:
    return b"".join(
        (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines
    )


async def begin(
    client: openai.AsyncOpenAI, lines: list[Any] | bytes, endpoint: str = CHAT, **fields: Any
) -> Any:
    data = lines if isinstance(lines, bytes) else pack(lines)
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields
    )


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        batch = await client.batches.retrieve(batch_id)
        if batch.status in {"completed", "failed", "expired", "cancelled"}:
            return batch
        assert time.monotonic() < deadline, batch
        await asyncio.sleep(0.02)


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, dict]:
    """Of a file of answers, by custom id; each is there once."""
    if file_id is None:
        return {}
    text = (await client.files.content(file_id)).text
    found = [json.loads(one) for one in text.splitlines()]
    by_id = {one["custom_id"]: one for one in found}
    assert len(by_id) == len(found)
    return by_id
