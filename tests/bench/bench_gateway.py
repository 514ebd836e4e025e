"""What the gateway costs: its process pinned to one core, a simulated engine and the load on the others.

The ratios are to the least that a proxy of the same library does (``bare_proxy.py``), turn by turn in one run: they hold on
a busy machine too, where times do not. Processor time is the gateway's own, of the kernel's clock; latency is through the gateway, less the median straight to the engine's
socket in the same seconds. Events come one by one, so that none is saved by two in one read.
The section ``litellm`` sets it beside LiteLLM's proxy in the same way, by processor time alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "rollout" / "inference"))

import aiohttp
import psutil
from figures import Figure, level
from gateway_processes import (
    CHAT,
    Running,
    free_port,
    processes,
    read_stream,
    session_for,
    start_python,
    stream_body,
    wait_ready,
)
from litellm_proxy import litellm_proxy

PROXY = Path(__file__).with_name("bare_proxy.py")
REPEATS = 3
REQUESTS = 200
STREAMS, EVENTS, DELAY = 40, 100, 0.05
OPEN = 2000


def measure(*sections: str) -> Iterator[Figure]:
    """All figures, or those of some sections. Raises KeyError for an unknown one."""
    for section in sections or SECTIONS:
        yield from SECTIONS[section]()


def beside_bare() -> Iterator[Figure]:
    """Overhead and processor time per request and per event, and memory per open stream."""
    core = max(os.sched_getaffinity(0))
    with processes(core=core) as running, bare_proxy(running, core) as bare:
        yield from asyncio.run(_measure(running, bare))


def beside_litellm() -> Iterator[Figure]:
    """Processor time per request and per event, over that of LiteLLM's proxy and all its processes."""
    core = max(os.sched_getaffinity(0))
    with processes(core=core) as running, litellm_proxy(running, core) as theirs:
        yield from asyncio.run(_measure_beside(running, theirs))


async def _measure_beside(running: Running, theirs: Running) -> list[Figure]:
    requests: dict[str, list[float]] = {"ours": [], "theirs": []}
    events: dict[str, list[float]] = {"ours": [], "theirs": []}
    for turn in range(REPEATS + 1):
        for name, one in (("ours", running), ("theirs", theirs)):
            async with session_for(one) as session:
                cpu = _cpu(one)
                await _requests(session, one, REQUESTS)
                spent = (_cpu(one) - cpu) / REQUESTS * 1e6
                if turn:  # the first one warms
                    requests[name].append(spent)
                    events[name].append(await _events(session, one))
    return [
        level("request, times LiteLLM proxy's", _over(requests), "x", "<= 0.2"),
        level("event, times LiteLLM proxy's", _over(events), "x", "info"),
        level("processor time per plain request, ours", requests["ours"], "us", "info"),
        level("processor time per plain request, LiteLLM's", requests["theirs"], "us", "info"),
        level("processor time per event, ours", events["ours"], "us", "info"),
        level("processor time per event, LiteLLM's", events["theirs"], "us", "info"),
    ]


@contextmanager
def bare_proxy(running: Running, core: int) -> Iterator[Running]:
    """The other proxy, over the same engine, on the same core."""
    port = free_port()
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "proxy.log"
        process = start_python([str(PROXY), str(running.sockets[0]), str(port)], log)
        os.sched_setaffinity(process.pid, {core})
        try:
            url = f"http://127.0.0.1:{port}"
            wait_ready(url, process, log)
            yield replace(running, url=url, gateway=process)
        finally:
            process.kill()
            process.wait()


async def _measure(running: Running, bare: Running) -> list[Figure]:
    async with session_for(running) as session:
        for one in (running, bare):
            await _requests(session, one, 50)
        added: list[float] = []
        requests: dict[str, list[float]] = {"ours": [], "bare": []}
        events: dict[str, list[float]] = {"ours": [], "bare": []}
        for _ in range(REPEATS):
            straight = statistics.median(await _straight(running, REQUESTS))
            for name, one in (("ours", running), ("bare", bare)):
                cpu = _cpu(one)
                through = await _requests(session, one, REQUESTS)
                requests[name].append((_cpu(one) - cpu) / REQUESTS * 1e6)
                events[name].append(await _events(session, one))
                if one is running:
                    added.append((_p99(through) - straight) * 1e3)
        memory = await _memory(session, running)
    request_cpu, event_cpu = requests["ours"], events["ours"]
    return [
        level("request, times a bare proxy's", _over(requests), "x", "info"),
        level("event, times a bare proxy's", _over(events), "x", "info"),
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


def _over(found: dict[str, list[float]]) -> list[float]:
    return [ours / other for ours, other in zip(*found.values(), strict=True)]


def _cpu(running: Running) -> float:
    """Seconds of it and of all its processes."""
    first = psutil.Process(running.gateway.pid)
    times = [one.cpu_times() for one in (first, *first.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values)) - 1]


SECTIONS = {"bare": beside_bare, "litellm": beside_litellm}
