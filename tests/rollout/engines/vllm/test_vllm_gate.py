"""Generations share one version of the weights; a load never happens under them."""

import asyncio

import pytest

from rollout.engines.served.rwlock import WeightGate
from rollout.errors import EngineError


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_load_waits_for_generations_and_later_ones_wait_for_the_load():
    gate, events, finish = WeightGate(), [], asyncio.Event()

    async def generate(name: str) -> None:
        async with gate.shared():
            events.append(f"{name} starts")
            await finish.wait()
            events.append(f"{name} ends")

    async def load() -> None:
        async with gate.exclusive(5.0):
            events.append("load")

    async with asyncio.TaskGroup() as group:
        group.create_task(generate("a"))
        await settle()
        group.create_task(load())
        await settle()
        group.create_task(generate("b"))
        await settle()
        assert events == ["a starts"]
        finish.set()

    assert events == ["a starts", "a ends", "load", "b starts", "b ends"]


async def test_a_load_gives_up_when_generations_do_not_end():
    gate = WeightGate()

    async with gate.shared():
        with pytest.raises(EngineError, match="1 generations did not end"):
            async with gate.exclusive(0.01):
                pass

    async with gate.exclusive(0.01), asyncio.timeout(60):
        pass


async def test_a_generation_that_fails_or_is_cancelled_does_not_keep_a_load_waiting():
    gate = WeightGate()

    async def generate(*, fails: bool) -> None:
        async with gate.shared():
            if fails:
                raise RuntimeError
            await asyncio.sleep(600)

    hung = asyncio.create_task(generate(fails=False))
    await settle()
    hung.cancel()
    await asyncio.gather(hung, generate(fails=True), return_exceptions=True)

    async with gate.exclusive(0.01):
        waiting = asyncio.create_task(generate(fails=False))
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with gate.exclusive(0.01), asyncio.timeout(60):
        pass


async def test_a_failed_load_lets_generations_in_again():
    gate = WeightGate()

    with pytest.raises(RuntimeError):
        async with gate.exclusive(0.01):
            raise RuntimeError

    async with asyncio.timeout(60), gate.shared():
        pass
