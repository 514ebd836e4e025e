"""Workers leave when they are told that a run ends. Whoever coordinates next must know of that end as well."""

import asyncio
import threading

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner, wait_for_outcome
from plans import changed

from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.protocol import messages as m
from rollout.protocol import routes


def stop(learner):
    learner.call(routes.STOP, m.Stop(reason="Suspended"))


def fail(learner):
    learner.call(routes.FAILED, m.Failed(kind="LearnerFailed", message="a loss that is no number"))


def test_an_order_to_stop_outlives_the_coordinator_that_took_it(bench):
    client = bench.start()
    stop(FakeLearner(client, bench.store))

    client = bench.start()

    assert FakeActor(client).claim().reason == "Suspended"


def test_an_order_to_stop_outlives_settings_that_come_after_it(bench):
    client = bench.start()
    stop(FakeLearner(client, bench.store))
    client.call(routes.SETTINGS, m.Settings(generation=7, live={}))

    client = bench.start()

    assert FakeActor(client).claim().reason == "Suspended"


def test_who_was_told_to_stop_may_save_an_anchor_with_the_next_coordinator(bench):
    client = bench.start()
    learner = FakeLearner(client, bench.store)
    stop(learner)

    client = bench.start()

    assert client.status().outcome is None
    learner.client = client
    assert learner.ask().stop == "Suspended"
    learner.anchor()
    learner.finish()
    assert wait_for_outcome(client).kind == "Stopped"


def test_the_next_run_attempt_goes_on_after_an_order_to_stop(bench):
    client = bench.start()
    stop(FakeLearner(client, bench.store))

    client = bench.start(changed(PLAN, attempt=2))

    assert FakeActor(client).claim().tasks


def test_a_failed_run_stays_failed_when_its_coordinator_is_started_again(bench):
    fail(FakeLearner(bench.start(), bench.store))

    client = bench.start()

    assert FakeActor(client).claim().reason == "LearnerFailed"
    assert wait_for_outcome(client).kind == "Failed"


def test_the_next_run_attempt_goes_on_after_a_failure(bench):
    fail(FakeLearner(bench.start(), bench.store))

    client = bench.start(changed(PLAN, attempt=2))

    assert client.status().outcome is None


@pytest.mark.parametrize(("write", "end"), [("set_outcome", fail), ("set_settings", stop)])
def test_nobody_is_told_to_leave_while_that_is_being_written(bench, monkeypatch, write, end):
    begun, written = threading.Event(), threading.Event()
    real = getattr(SqliteLedger, write)

    async def held(self, value):
        begun.set()
        await asyncio.to_thread(written.wait)
        await real(self, value)

    client = bench.start()
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    monkeypatch.setattr(SqliteLedger, write, held)
    ending = threading.Thread(target=end, args=(learner,))
    ending.start()
    assert begun.wait(60)

    told = actor.claim().stop

    written.set()
    ending.join()
    assert not told
    assert actor.claim().stop
