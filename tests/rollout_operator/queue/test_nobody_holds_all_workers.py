"""One run, or the runs of one namespace, take no more of the operator than their part: others are looked after."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.controller.worker import Workers
from rollout_operator.run.controller import Reconciler
from rollout_operator.run.coordinator import CALLS_MAX
from rollout_operator.settings import Settings

GREEDY = Key(namespace="n", name="greedy", kind="RolloutRun")
HONEST = Key(namespace="honest", name="run", kind="RolloutRun")
SILENT = [Key(namespace="silent", name=f"run-{index}", kind="RolloutRun") for index in range(50)]


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class AtOnce:
    """A controller that asks to be called again in no time, and never waits for anything."""

    def __init__(self, seconds):
        self.seconds, self.turns = seconds, 0

    async def reconcile(self, _):
        self.turns += 1
        if self.turns > 10_000:
            raise AssertionError("nobody else had a turn")
        return self.seconds


async def working(controller, queue, num=1):
    leading = asyncio.Event()
    leading.set()
    workers = Workers(
        controllers={"RolloutRun": controller},
        queue=queue,
        leading=leading,
        count=lambda *_: None,
    )
    return [asyncio.ensure_future(workers.run()) for _ in range(num)]


async def ended(tasks):
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def settle():
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_a_key_that_is_wanted_again_at_once_is_not_all_the_work_there_is(seconds):
    clock, controller = Clock(), AtOnce(seconds)
    queue = KeyQueue(clock)
    tasks = await working(controller, queue)
    queue.put(GREEDY)
    await settle()
    assert controller.turns == 1
    clock.now += 1
    queue.put(HONEST)
    await settle()
    assert controller.turns == 3
    await ended(tasks)


class Asking:
    """Each run asks its coordinator: those of one namespace never answer."""

    def __init__(self, queue):
        nobody = cast("Any", SimpleNamespace(leave_alone=lambda *_: None))
        parts = dict.fromkeys(
            (
                "client",
                "store",
                "applier",
                "coordinators",
                "poster",
                "keeper",
                "record_keys",
                "saver",
            ),
            nobody,
        )
        self.reconciler = Reconciler(queue=queue, observer=nobody, **parts)
        self.answers = asyncio.Event()
        self.under_way, self.answered = 0, []

    async def reconcile(self, key):
        observed = SimpleNamespace(namespace=key.namespace, name=key.name, uid=key.name)

        async def call():
            self.under_way += key.namespace == "silent"
            if key.namespace == "silent":
                await self.answers.wait()
            self.answered.append(key)

        await self.reconciler._ask(observed, call)


async def test_fifty_silent_coordinators_leave_workers_to_others():
    clock = Clock()
    queue = KeyQueue(clock)
    asking = Asking(queue)
    tasks = await working(asking, queue, Settings().concurrency)
    for key in SILENT:
        queue.put(key)
    await settle()
    assert asking.under_way == CALLS_MAX
    queue.put(HONEST)
    await settle()
    assert asking.answered == [HONEST]
    asking.answers.set()
    for _ in range(len(SILENT)):
        clock.now += 2
        queue.put(HONEST)
        await settle()
    assert set(asking.answered) == {HONEST, *SILENT}, "those that had to wait are asked later"
    await ended(tasks)
