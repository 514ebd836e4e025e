"""What a claim waits for (rows, beginnings) takes time, in which steps are committed and versions retired."""

import asyncio
import threading

from coordinator_kit import PLAN, FakeActor, FakeLearner, Rows
from plans import changed

from rollout.coordinator.rows import RowCache


class GatedRows(Rows):
    """Rows that are read once the gate is open."""

    def __init__(self) -> None:
        self.reading, self.gate = threading.Event(), threading.Event()

    def train(self, ordinals):
        self.reading.set()
        assert self.gate.wait(30)
        return super().train(ordinals)


def test_rows_that_are_forgotten_while_others_are_read_are_there():
    source = GatedRows()
    source.gate.set()
    cache = RowCache(source)

    async def forget_while_reading():
        await cache.train([1])
        source.reading.clear()
        source.gate.clear()
        asked = asyncio.create_task(cache.train([1, 2]))
        await asyncio.to_thread(source.reading.wait, 30)
        cache.forget_below(2)
        source.gate.set()
        return await asked

    assert asyncio.run(forget_while_reading()) == Rows().train([1, 2])


def test_rows_that_are_read_once_are_not_read_again():
    source = GatedRows()
    source.gate.set()
    cache = RowCache(source)
    asyncio.run(cache.train([1]))
    source.gate.clear()

    assert asyncio.run(cache.train([1])) == Rows().train([1])


def test_a_version_that_is_retired_while_rows_are_read_is_handed_out_to_nobody(bench):
    client = bench.start(changed(PLAN, exact=False, staleness_max=1))
    FakeLearner(client, bench.store)
    run = bench.coordinator.run
    (key,) = run.state.versions
    versions, kept = run.state.versions, run.state.versions[key]

    class RetiringRows(Rows):
        def train(self, ordinals):
            versions.pop(key, None)
            return super().train(ordinals)

    run.rows = RowCache(RetiringRows())
    actor = FakeActor(client)
    assert actor.claim(tasks_max=2).tasks == ()
    assert bench.coordinator.unexpected_errors == 0

    versions[key] = kept
    assert len(actor.claim(tasks_max=2, wait=1.0).tasks) == 2
    assert run.state.leases.keys() == {one.task_id for one in actor.claim(tasks_max=2).tasks}
