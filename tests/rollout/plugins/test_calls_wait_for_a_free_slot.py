"""A plugin is called so many times at once as it takes; who waits is let in by who ends, and who gives up takes no slot along."""

import asyncio
import threading

import pytest

from rollout.plugins.sidecar.slots import CallSlots

LONG = 30.0


async def test_who_waits_is_let_in_in_order_when_a_call_ends():
    slots, order = CallSlots(1), []
    await slots.take_soon(LONG)

    async def call(name):
        await slots.take_soon(LONG)
        order.append(name)
        slots.release()

    waiting = [asyncio.create_task(call(name)) for name in "abc"]
    await asyncio.sleep(0)
    assert order == []
    slots.release()
    await asyncio.gather(*waiting)
    assert order == ["a", "b", "c"]


async def test_who_is_cancelled_takes_no_slot_along():
    slots = CallSlots(1)
    await slots.take_soon(LONG)
    waiting = asyncio.create_task(slots.take_soon(LONG))
    await asyncio.sleep(0)
    slots.release()  # it has been let in, and does not know yet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await slots.take_soon(LONG)


async def test_who_is_tired_of_waiting_is_refused_and_forgotten():
    slots = CallSlots(1)
    slots.take(LONG)
    with pytest.raises(TimeoutError):
        await slots.take_soon(0.001)
    with pytest.raises(TimeoutError):
        slots.take(0.001)
    slots.release()
    slots.take(LONG)


async def test_a_thread_and_a_loop_wait_in_one_line():
    slots = CallSlots(1)
    await slots.take_soon(LONG)
    thread = threading.Thread(target=lambda: (slots.take(LONG), slots.release()))
    thread.start()
    waiting = asyncio.create_task(slots.take_soon(LONG))
    slots.release()
    await waiting
    await asyncio.to_thread(thread.join)
