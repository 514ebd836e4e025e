"""Many streams at a time over processes of their own: none fails, one that loses its engine is told, and the next is served."""

from __future__ import annotations

import asyncio

import pytest
from gateway_processes import processes, read_stream, session_for, stream_body

QUICK = 300
CONNECTING_MAX = 200
"""What is promised is many streams that are open, not as many that are begun in one moment."""

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("streams", "events"),
    [(QUICK, 10), pytest.param(8000, 40, marks=pytest.mark.slow)],
)
async def test_every_stream_is_whole(streams, events):
    body = stream_body(f"tokens={events} delay={streams / 1600}")
    with processes(live_max=20_000) as running:
        async with session_for(running) as session:
            connecting = asyncio.Semaphore(CONNECTING_MAX)

            async def read():
                async with connecting:
                    begun = asyncio.Event()
                    reading = asyncio.create_task(read_stream(session, running.url, body, begun))
                    await asyncio.wait(
                        {reading, asyncio.create_task(begun.wait())},
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                return reading

            readings = await asyncio.gather(*(read() for _ in range(streams)))
            found = await asyncio.gather(*readings)
    assert {(one.status, one.events, one.done, one.error) for one in found} == {
        (200, events + 1, True, "")
    }


async def test_streams_of_a_killed_engine_end_with_an_error_and_the_others_are_whole():
    with processes(2, slots=64) as running:
        async with session_for(running) as session:
            begun = [asyncio.Event() for _ in range(80)]
            body = stream_body("tokens=40 delay=0.1")
            reading = [
                asyncio.create_task(read_stream(session, running.url, body, one)) for one in begun
            ]
            await asyncio.gather(*(one.wait() for one in begun))
            running.engines[0].kill()
            found = await asyncio.gather(*reading)
            broken = [one for one in found if one.error]
            assert 20 <= len(broken) <= 60
            assert all("engine_lost" in one.error and one.done for one in broken)
            assert {(one.events, one.done) for one in found if not one.error} == {(41, True)}
            after = await asyncio.gather(
                *(read_stream(session, running.url, stream_body("hi")) for _ in range(20))
            )
            assert {(one.status, one.done, one.error) for one in after} == {(200, True, "")}
