"""Whoever waits, the status says for whom: also when nobody is left who could ask."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from coordinator_kit import HELDOUT, PLAN, FakeActor, FakeLearner, wait_for_outcome
from plans import changed

from rollout.errors import CoordinatorError


def waits(client):
    return {one.who: (one.what, one.culprit) for one in client.status().waiting}


def silence(bench, name, seconds=100.0):
    bench.coordinator.run.state.workers[name].seen_at -= seconds


def test_a_complete_batch_that_nobody_takes_names_the_silent_learner(bench):
    client = bench.start()
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    assert learner.ask().waiting is not None
    actor.work()
    assert waits(client)["learner"][1] == "nobody: the batch is complete"
    silence(bench, "learner")
    assert waits(client)["learner"][1] == "the learner is silent for 100 s"
    assert waits(client)["run"] == ("step 1", "the learner is silent for 100 s")


def test_the_end_waits_for_its_evaluations_and_then_for_the_learner(bench):
    evaluated = replace(HELDOUT, at_start=False)
    client = bench.start(changed(PLAN, steps_max=1, evaluations=(evaluated,)))
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    actor.work()
    learner.commit(learner.ask())
    silence(bench, "actor-0")
    what, culprit = waits(client)["run"]
    assert what == "evaluation heldout (selection) of step 1"
    assert culprit == "prompt 0 is not started: no actor is alive"
    task = actor.claim(tasks_max=1).tasks[0]
    assert waits(client)["run"][1].startswith("prompt 0 is with actor-0")
    actor.submit(actor.play(task))
    actor.work()
    silence(bench, "learner")
    wanted = ("the learner's last anchor", "the learner is silent for 100 s")
    deadline = time.monotonic() + 60.0
    while waits(client)["run"] != wanted:
        assert time.monotonic() < deadline, waits(client)
        time.sleep(0.02)
    learner.finish()
    wait_for_outcome(client)
    assert "run" not in waits(client)


def test_a_question_that_is_refused_starts_no_wait(bench):
    """A late copy of an old question must not shorten the time that later samples have."""
    client = bench.start()
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    actor.work()
    learner.commit(learner.ask())
    learner.step = 0
    with pytest.raises(CoordinatorError, match="cannot be next"):
        learner.ask()
    assert "learner" not in waits(client)
