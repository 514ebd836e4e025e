"""What the gateway costs: its process pinned to one core, a simulated engine and the load on the others.

Processor time is the gateway's own, of the kernel's clock; latency is through the gateway, less the median straight to the engine's
socket in the same seconds. Events come one by one, so that none is saved by two in one read.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "rollout" / "inference"))

import aiohttp
import psutil
from figures import Figure, level
from gateway_processes import CHAT, Running, processes, read_stream, session_for, stream_body

REPEATS = 5
REQUESTS = 400
STREAMS, EVENTS, DELAY = 40, 100, 0.05
OPEN = 2000


def measure() -> Iterator[Figure]:
    """Overhead and processor time per request and per event, and memory per open stream."""
    core = max(os.sched_getaffinity(0))
    with processes(core=core) as running:
        yield from asyncio.run(_measure(running))


async def _measure(running: Running) -> list[Figure]:
    async with session_for(running) as session:
        await _requests(session, running, 50)
        added, request_cpu = [], []
        for _ in range(REPEATS):
            straight = statistics.median(await _straight(running, REQUESTS))
            cpu = _cpu(running)
            through = await _requests(session, running, REQUESTS)
            request_cpu.append((_cpu(running) - cpu) / REQUESTS * 1e6)
            added.append((_p99(through) - straight) * 1e3)
        event_cpu = [await _events(session, running) for _ in range(REPEATS)]
        memory = await _memory(session, running)
    return [
        level("added latency, p99, one at a time", added, "ms", "<= 3"),
        level("processor time per plain request", request_cpu, "us", "info"),
        level("processor time per streamed event", event_cpu, "us", "<= 50"),
        level(f"memory per open stream, {OPEN} open", [memory], "KiB", "info"),
    ]


async def _requests(session: aiohttp.ClientSession, running: Running, num: int) -> list[float]:
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi " * 100}]}
    ).encode()
    return [await _timed(session, running.url + CHAT, body) for _ in range(num)]


async def _straight(running: Running, num: int) -> list[float]:
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi " * 100}]}
    ).encode()
    connector = aiohttp.UnixConnector(path=str(running.sockets[0]))
    async with aiohttp.ClientSession(
        connector=connector, headers={"Content-Type": "application/json"}
    ) as session:
        return [await _timed(session, "http://engine" + CHAT, body) for _ in range(num)]


async def _timed(session: aiohttp.ClientSession, url: str, body: bytes) -> float:
    start = time.perf_counter()
    async with session.post(url, data=body) as answer:
        await answer.read()
        assert answer.status == 200
    return time.perf_counter() - start


async def _events(session: aiohttp.ClientSession, running: Running) -> float:
    body = stream_body(f"tokens={EVENTS} delay={DELAY}")
    cpu = _cpu(running)
    found = await asyncio.gather(*(read_stream(session, running.url, body) for _ in range(STREAMS)))
    assert all(one.done for one in found)
    return (_cpu(running) - cpu) / sum(one.events for one in found) * 1e6


async def _memory(session: aiohttp.ClientSession, running: Running) -> float:
    process = psutil.Process(running.gateway.pid)
    before = process.memory_info().rss
    begun = [asyncio.Event() for _ in range(OPEN)]
    body = stream_body("tokens=10000 delay=5")
    reading = [asyncio.create_task(read_stream(session, running.url, body, one)) for one in begun]
    await asyncio.gather(*(one.wait() for one in begun))
    held = process.memory_info().rss - before
    for one in reading:
        one.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    return held / OPEN / 1024


def _cpu(running: Running) -> float:
    times = psutil.Process(running.gateway.pid).cpu_times()
    return times.user + times.system


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values)) - 1]
