"""Full queues are 503, a key's own limits 429, both with a Retry-After from 1 to 60; nothing unlimited waits."""

import asyncio

import pytest
from gateway_kit import chat, until

CHAT = "/v1/chat/completions"
LONG = "tokens=10000 delay=0.05"


async def key_of(served, **limits):
    key = served.new_key(**limits)
    await until(lambda: served.state.ring.holds(key.split("-")[2], 0.0), "the key")
    return served.headers(key)


async def test_a_full_queue_says_so_at_once(gateway):
    served = await gateway(slots=1, settings={"queue_requests_max": 1})
    tasks = [asyncio.create_task(served.post(CHAT, chat(LONG))) for _ in range(2)]
    await until(lambda: served.state.pools[0].open_requests == 2, "two requests")
    status, refused, headers = await served.post(CHAT, chat("hi"))
    assert (status, refused["error"]["code"]) == (503, "full")
    assert 1 <= int(headers["Retry-After"]) <= 60
    for task in tasks:
        task.cancel()


async def test_waiting_has_an_end(gateway):
    served = await gateway(slots=1, settings={"queue_seconds": 0.3})
    first = asyncio.create_task(served.post(CHAT, chat(LONG)))
    await until(lambda: served.engines["a"].open, "the first")
    status, refused, _ = await served.post(CHAT, chat("hi"))
    assert (status, refused["error"]["code"]) == (503, "expired")
    first.cancel()


@pytest.mark.parametrize("limit", [{"requests_per_minute": 1}, {"tokens_per_minute": 300}])
async def test_a_keys_budget_is_its_own(gateway, limit):
    served = await gateway()
    headers = await key_of(served, **limit)
    status, _, left = await served.post(CHAT, chat("hi", max_tokens=250), headers=headers)
    kind = next(iter(limit)).split("_")[0]
    assert (status, left[f"x-ratelimit-limit-{kind}"]) == (200, str(next(iter(limit.values()))))
    await served.post(CHAT, chat("hi", max_tokens=250), headers=headers)
    status, refused, refusal = await served.post(CHAT, chat("hi", max_tokens=300), headers=headers)
    assert (status, refused["error"]["type"]) == (429, "rate_limit_exceeded")
    assert 1 <= int(refusal["Retry-After"]) <= 60
    status, _, _ = await served.post(CHAT, chat("hi"))
    assert status == 200


async def test_tokens_that_were_not_used_are_given_back(gateway):
    served = await gateway()
    headers = await key_of(served, tokens_per_minute=300)
    for _ in range(4):
        status, _, _ = await served.post(CHAT, chat("hi", max_tokens=200), headers=headers)
        assert status == 200


async def test_requests_at_a_time_are_bounded(gateway):
    served = await gateway()
    headers = await key_of(served, in_flight_max=1)
    first = asyncio.create_task(served.post(CHAT, chat(LONG), headers=headers))
    await until(lambda: served.engines["a"].open, "the first")
    status, _, _ = await served.post(CHAT, chat("hi"), headers=headers)
    assert status == 429
    first.cancel()
    await until(lambda: not len(served.state.live), "its end")
    status, _, _ = await served.post(CHAT, chat("hi"), headers=headers)
    assert status == 200


async def test_no_engine_has_more_than_its_slots(gateway):
    served = await gateway(slots=2, m=("a", "b"))
    answers = await asyncio.gather(*(served.post(CHAT, chat("delay=0.01")) for _ in range(40)))
    assert {status for status, _, _ in answers} == {200}
    assert max(one.most for one in served.engines.values()) <= 2
