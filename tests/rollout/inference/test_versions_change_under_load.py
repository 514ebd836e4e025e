"""Under load a version's engines are exchanged one by one, and a name is promoted to another version: no stream breaks, none is of two versions."""

from __future__ import annotations

import asyncio

import pytest
from gateway_processes import processes, read_stream, session_for, stream_body

EVENTS = 12
CONNECTING_MAX = 200

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

STEPS = (
    {"old": ("e0", "e1")},
    {"old": ("e1",)},
    {"old": ("e1",), "new": ("e2",)},
    {"new": ("e2",)},
    {"new": ("e2", "e0")},
)
"""What the table says, one after the other; ``live`` is the last version in each."""


@pytest.mark.parametrize("streams", [240, pytest.param(8000, marks=pytest.mark.slow)])
async def test_every_stream_is_whole_and_of_one_version(streams):
    with processes(3, live_max=20_000) as running:
        serve(running, STEPS[0])
        async with session_for(running) as session:
            await served(session, running, "old")
            connecting = asyncio.Semaphore(CONNECTING_MAX)
            body = stream_body(f"tokens={EVENTS} delay={streams / 4000}", "live")

            async def begin():
                async with connecting:
                    begun = asyncio.Event()
                    reading = asyncio.create_task(
                        read_stream(session, running.url, body, begun, looks=True)
                    )
                    waiting = asyncio.create_task(begun.wait())
                    await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
                return reading

            open_streams = []
            for step in STEPS:
                serve(running, step)
                if (
                    step is STEPS[-1]
                ):  # files are looked at twice a second: a fast machine is through before
                    await served(session, running, "new")
                share = streams // len(STEPS)
                open_streams += await asyncio.gather(*(begin() for _ in range(share)))
            last = await served(session, running, "new")
            found = await asyncio.gather(*open_streams)
    assert last.version == "new"
    assert {(one.status, one.events, one.done, one.error) for one in found} == {
        (200, EVENTS + 1, True, "")
    }
    assert {one.version for one in found} == {"old", "new"}
    assert all(one.models == {one.version.encode()} for one in found)


def serve(running, versions) -> None:
    running.serve(aliases={"live": list(versions)[-1]}, **versions)


async def served(session, running, version):
    """Wait until ``live`` is this version."""
    while True:
        found = await read_stream(session, running.url, stream_body("hi", "live"))
        if found.version == version:
            return found
        await asyncio.sleep(0.05)
