"""An actor that waits for work has it with the commit that lets it in, without a transaction of its own."""

import threading
import time

from coordinator_kit import PLAN, FakeActor, FakeLearner
from plans import changed

LONG = changed(PLAN, exact=False, steps_max=4)


def wait_in_thread(actor):
    """The actor's claim, on its way; what it is told lies in the list."""
    told = []
    thread = threading.Thread(target=lambda: told.append(actor.claim(wait=60.0)))
    thread.start()
    return thread, told


def until_waiting(bench, count):
    while len(bench.coordinator.run.claims) < count:
        time.sleep(0.01)


def test_it_is_leased_by_the_commit_and_by_no_claim(bench, monkeypatch):
    client = bench.start(LONG)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    actor.work()
    batch = learner.ask()
    thread, told = wait_in_thread(actor)
    until_waiting(bench, 1)
    ledger, asked = bench.coordinator.run.ledger, []
    claim = ledger.claim

    async def counted(request):
        asked.append(request)
        return await claim(request)

    monkeypatch.setattr(ledger, "claim", counted)
    learner.commit(batch)
    thread.join(60.0)
    assert [task.ordinal for task in told[0].tasks] == [2, 3]
    assert {task.version.step for task in told[0].tasks} == {1}
    assert asked == []
    assert actor.submit(*map(actor.play, told[0].tasks)).accepted == (True, True)


def test_the_last_commit_tells_who_waits_that_the_run_ends(bench):
    client = bench.start(changed(PLAN, exact=False, steps_max=1))
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    actor.work()
    batch = learner.ask()
    thread, told = wait_in_thread(actor)
    until_waiting(bench, 1)
    learner.commit(batch)
    learner.finish()
    thread.join(60.0)
    assert told[0].tasks == ()
