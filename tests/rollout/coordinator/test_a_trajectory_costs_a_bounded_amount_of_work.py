"""What the coordinator does for a trajectory is counted, not timed: Python calls, and steps of SQLite's machine.

A step of 32 groups of 8 from claim to commit, in a coordinator that is warm. The bounds are a tenth above what is
counted today; work that is worth more than that raises them, and says why.
"""

import sqlite3
import threading
from collections import Counter

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner
from plans import changed

from rollout.protocol import messages as m
from rollout.protocol import routes

GROUPS, SAMPLES = 32, 8
WARM_STEPS, STEPS = 2, 2
CALLS_MAX, DATABASE_STEPS_MAX = 64.0, 164.0
WINDOW, AT_ONCE, CLAIMS = 1024, 4, 16
WINDOW_CALLS_MAX = 88.0
"""The same in small claims, beside a learner that waits: what is gone through per call does not grow with the window."""
CROWD = 256
"""Actors that share the tasks of a step."""


class Counted(sqlite3.Connection):
    """A connection that counts the steps of SQLite's machine."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.set_progress_handler(self._step, 1)

    def _step(self):
        WORK["database steps"] += 1
        return 0


WORK: Counter[str] = Counter()


def note_call(frame, event, arg):
    """The hook of Python's profiler."""
    if event in {"call", "c_call"} and frame.f_code is not Counted._step.__code__:
        WORK["calls"] += 1


@pytest.fixture
def counted(monkeypatch, bench):
    """A run whose coordinator is counted: its threads start after the hooks."""
    plain = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **kwargs: plain(*args, factory=Counted, **kwargs)
    )
    before = threading.getprofile()
    threading.setprofile(note_call)
    yield bench
    threading.setprofile(before)


def test_a_trajectory_costs_a_bounded_amount_of_work(counted):
    plan = changed(PLAN, tasks_per_step=GROUPS, num_samples=SAMPLES, steps_max=None)
    client = counted.start(plan)
    learner, actor = FakeLearner(client, counted.store), FakeActor(client)
    for step in range(WARM_STEPS + STEPS):
        if step == WARM_STEPS:
            WORK.clear()
        assert actor.work() == GROUPS
        learner.commit(learner.ask())
    spent = {name: count / (STEPS * GROUPS * SAMPLES) for name, count in WORK.items()}
    assert 0 < spent["calls"] <= CALLS_MAX
    assert 0 < spent["database steps"] <= DATABASE_STEPS_MAX


def test_a_small_claim_costs_the_same_in_a_large_window(counted):
    plan = changed(PLAN, tasks_per_step=WINDOW, num_samples=SAMPLES, steps_max=None)
    client = counted.start(plan)
    learner, actor = FakeLearner(client, counted.store), FakeActor(client)
    waits = counted.coordinator.run.waits
    ask = m.BatchRequest(step=1, wait_seconds=60.0)
    waiting = threading.Thread(target=lambda: learner.call(routes.BATCH, ask), daemon=True)
    waiting.start()
    while waits.learner_since is None:
        actor.call(routes.ACTOR_HEARTBEAT, m.Heartbeat())
    for number in range(2 * CLAIMS):
        if number == CLAIMS:
            WORK.clear()
        tasks = actor.claim(AT_ONCE).tasks
        assert all(actor.submit(*map(actor.play, tasks)).accepted)
    calls = WORK["calls"] / (CLAIMS * AT_ONCE * SAMPLES)
    while actor.work():
        pass
    waiting.join()
    assert 0 < calls <= WINDOW_CALLS_MAX


def test_a_claim_costs_the_same_among_many_actors(counted):
    """Fewer tasks are open than all could take, so that each is given its share of them."""
    plan = changed(PLAN, tasks_per_step=2 * CLAIMS, num_samples=2, steps_max=None)
    client = counted.start(plan)
    FakeLearner(client, counted.store)
    actor, spent = FakeActor(client), []
    for crowd in (range(1, 4), range(4, CROWD)):
        for index in crowd:
            FakeActor(client, index)
        for number in range(CLAIMS):
            if number == 1:
                WORK.clear()
            tasks = actor.claim(1).tasks
            assert len(tasks) == 1
            actor.submit(*map(actor.play, tasks))
        spent.append(WORK["calls"] / (CLAIMS - 1))
    few, many = spent
    assert 0 < many <= 1.1 * few
