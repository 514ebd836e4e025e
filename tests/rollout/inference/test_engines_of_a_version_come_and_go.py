"""A version's engines change while it is asked: those that stay keep what is known of them, those that go keep what they have, and one that hangs keeps nothing."""

import asyncio

from gateway_kit import build_table, chat, until
from simulated_engine import Simulated, start_engine

from rollout.inference.gateway import pools
from rollout.inference.gateway.rules import placing
from rollout.inference.gateway.table import write_table

CHAT = "/v1/chat/completions"
LONG = "tokens=60 delay=0.05"


async def test_an_engine_that_leaves_ends_its_stream_and_who_waited_for_it_is_answered_by_another(
    gateway,
):
    served = await gateway(slots=1)
    [pool] = served.state.pools
    other = Simulated()
    runner = await start_engine(other, str(served.folder / "b.sock"))
    running = asyncio.create_task(served.stream(chat(LONG)))
    await until(lambda: served.engines["a"].open, "the stream")
    waiting = asyncio.create_task(served.post(CHAT, chat("hi")))
    await until(lambda: pool.open_requests == 2, "who waits")
    write_table(served.table, build_table(served.folder, {"m": ("b",)}, slots=1))
    status, _, _ = await waiting
    assert (status, len(other.seen)) == (200, 1)
    assert served.engines["a"].open == 1
    stream = await running
    assert stream.count(b"data: ") == 61
    assert b'"error"' not in stream
    assert served.state.pools == [pool]
    await until(lambda: not pool._left, "the old engine's end")
    await runner.cleanup()


async def test_an_engine_that_stays_keeps_its_place_and_its_counters(gateway):
    served = await gateway(m=("a", "b"))
    [pool] = served.state.pools
    running = asyncio.create_task(served.stream(chat(LONG)))
    await until(lambda: served.engines["a"].open + served.engines["b"].open, "the stream")
    [busy] = [one for one in pool.engines if one.load.requests]
    write_table(served.table, build_table(served.folder, {"m": (busy.load.name,)}, slots=9))
    await until(lambda: len(pool.engines) == 1, "the change")
    assert pool.engines == [busy]
    assert (busy.load.requests, busy.load.slots) == (1, 9)
    assert (await running).count(b"data: ") == 61
    assert busy.load.requests == 0


async def test_other_weights_under_a_name_are_other_engines(gateway):
    served = await gateway()
    [pool] = served.state.pools
    other = build_table(served.folder, {"m": ("a",)}).versions[0]
    assert pool.serves(other)
    table = build_table(served.folder, {"n": ("a",)})
    assert not pool.serves(table.versions[0])


async def test_an_engine_that_hangs_loses_its_requests_to_another(gateway, monkeypatch):
    monkeypatch.setattr(pools, "HEALTH_SECONDS_MAX", 0.2)
    served = await gateway(m=("a", "b"))
    served.engines["a"].silent = True
    asked = (served.post(CHAT, chat(f"hi {i}")) for i in range(8))
    found = await asyncio.gather(*asked, *(served.stream(chat(f"ho {i}")) for i in range(4)))
    assert {one[0] for one in found[:8]} == {200}
    assert {one.count(b"data: ") for one in found[8:]} == {5}
    assert len(served.engines["b"].seen) == 12
    assert not served.state.pools[0].engines[0].load.ready
    served.engines["a"].silent = False
    await until(lambda: served.state.pools[0].engines[0].load.ready, "its return")


async def test_the_only_engine_is_waited_for_however_silent(gateway, monkeypatch):
    monkeypatch.setattr(pools, "HEALTH_SECONDS_MAX", 0.05)
    served = await gateway()
    running = asyncio.create_task(served.stream(chat(LONG)))
    await until(lambda: served.engines["a"].open, "the stream")
    served.engines["a"].silent = True
    await until(lambda: served.state.pools[0].engines[0].silent > pools.SILENT_CHECKS, "silence")
    assert (await running).count(b"data: ") == 61


async def test_a_stream_that_has_said_nothing_begins_again_elsewhere(gateway):
    served = await gateway(m=("a", "b"))
    served.engines["a"].drops = True
    streams = await asyncio.gather(*(served.stream(chat(f"hi {i}")) for i in range(4)))
    assert {one.count(b"data: ") for one in streams} == {5}
    assert not any(b'"error"' in one for one in streams)


async def test_a_prompt_waits_for_the_engine_that_has_it_and_not_longer_than_it_is_worth(
    gateway, monkeypatch
):
    monkeypatch.setattr(placing, "PATIENCE_SECONDS_MAX", 0.3)
    served = await gateway(m=("a", "b"), slots=1)
    [pool] = served.state.pools
    text = "the same beginning " * 2000
    running = asyncio.create_task(served.stream(chat(f"{LONG} {text}")))
    await until(lambda: pool.open_requests == 1, "the stream")
    [home] = [one for one in pool.engines if one.load.requests]
    waiting = asyncio.create_task(served.post(CHAT, chat(f"{LONG} {text} again")))
    await until(lambda: pool.open_requests == 2, "who waits")
    assert [one.load.requests for one in pool.engines if one is not home] == [0]
    other = (await served.post(CHAT, chat("something else")))[0]
    assert (other, pool.open_requests) == (200, 2)
    await until(lambda: all(one.load.requests for one in pool.engines), "its patience's end")
    assert not running.done()
    running.cancel()
    waiting.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    await until(lambda: pool.open_requests == 0, "both ends")
