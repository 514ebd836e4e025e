"""The queue: back-off that grows and is forgiven, keys in hand are not handed out twice."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from rollout_operator.controller.queue import HOLD_SECONDS_MAX, Key, KeyQueue, backoff_seconds

A, B = (
    Key(namespace="n", name="a", kind="RolloutRun"),
    Key(namespace="n", name="b", kind="RolloutRun"),
)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


async def settle():
    """Let everybody do what there is to do; no time passes."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_a_key_in_hand_comes_back_once_when_there_was_news():
    queue = KeyQueue()
    queue.put(A)
    assert await queue.get() == A
    queue.put(A)
    queue.put(A)
    assert len(queue) == 0
    queue.done(A)
    assert await queue.get() == A
    queue.done(A)
    assert len(queue) == 0


async def test_a_later_key_does_not_delay_an_earlier_one():
    clock = Clock()
    queue = KeyQueue(clock)
    queue.put_later(A, 100)
    queue.put_later(B, 5)
    queue.put_later(A, 50)
    clock.now = 5
    assert await queue.get() == B
    clock.now = 50
    assert await queue.get() == A
    queue.done(A)
    clock.now = 1000
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_a_key_that_is_due_wakes_one_of_those_who_wait():
    looks = []
    queue = KeyQueue(lambda: looks.append(1) or 0.0)
    waiting = [asyncio.ensure_future(queue.get()) for _ in range(64)]
    await settle()
    looks.clear()
    queue.put(A)
    await settle()
    assert [one.result() for one in waiting if one.done()] == [A]
    assert len(looks) < 10
    queue.put(B)
    await settle()
    assert [one.result() for one in waiting if one.done()] == [A, B]
    for one in waiting:
        one.cancel()


async def test_failures_wait_longer_until_forgiven():
    queue = KeyQueue(Clock(), lambda: 0.0)
    waits = [queue.retry(A) for _ in range(4)]
    assert waits == [0.2, 0.4, 0.8, 1.6]
    assert queue.failures(A) == 4
    queue.forgive(A)
    assert queue.retry(A) == 0.2
    assert queue.retry(B, 7.0) == 7.0


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_back_off_is_bounded(num_failures, jitter):
    assert 0.1 <= backoff_seconds(num_failures, jitter) <= 120


async def test_the_wait_of_a_key_is_measured():
    clock = Clock()
    queue = KeyQueue(clock)
    queue.put(A)
    clock.now = 3.0
    assert await queue.take() == (A, 3.0)


async def test_news_bring_a_failed_key_back_no_sooner_than_its_back_off_says():
    clock = Clock()
    queue = KeyQueue(clock, lambda: 0.0)
    queue.retry(A)
    queue.put(A)
    assert len(queue) == 0
    clock.now = 0.2
    assert await queue.get() == A
    queue.done(A)
    for _ in range(9):
        queue.retry(A)
    queue.put(A)
    clock.now += HOLD_SECONDS_MAX
    assert await queue.get() == A


async def test_nothing_brings_a_key_back_before_the_server_wants_to_see_it():
    clock = Clock()
    queue = KeyQueue(clock, lambda: 0.0)
    assert queue.retry(A, asked_seconds=30.0) == 30.0
    queue.put(A)
    clock.now = 29.9
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    clock.now = 30.0
    assert await queue.get() == A


async def test_a_forgiven_key_is_held_no_more():
    queue = KeyQueue(Clock(), lambda: 0.0)
    queue.retry(A, asked_seconds=30.0)
    queue.forgive(A)
    queue.put(A)
    assert await queue.get() == A
