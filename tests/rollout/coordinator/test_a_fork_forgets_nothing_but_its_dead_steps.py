"""After a fork: an order to stop holds, and steps, their metrics and evaluations are those of the live chain."""

from dataclasses import replace

import pytest
from coordinator_kit import HELDOUT, PLAN, FakeActor, FakeLearner
from plans import changed

from rollout.coordinator.duties import housekeeping
from rollout.protocol import messages as m
from rollout.protocol import routes

LONG = changed(PLAN, exact=False, steps_max=6)


def commit_steps(learner, actor, num):
    for _ in range(num):
        learner.commit(wait_for_batch(learner, actor))


def wait_for_batch(learner, actor):
    batch = learner.ask()
    while batch.waiting is not None:
        actor.work()
        batch = learner.ask()
    return batch


def fork(learner, step):
    """The learner is restarted, and its replay meets another digest."""
    version = learner.version(step, "other")
    ask = m.Fork(
        step=step,
        version=version,
        chain="c",
        reason=f"replay of step {step} met another digest",
    )
    learner.lineage, learner.step = learner.call(routes.FORK, ask).lineage, step


def test_an_order_to_stop_outlives_a_fork(bench):
    client = bench.start(LONG)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    commit_steps(learner, actor, 1)
    client.call(routes.STOP, m.Stop(reason="Stopped"))
    learner = FakeLearner(client, bench.store)
    fork(learner, 1)
    assert learner.ask().stop == "Stopped"


def test_what_was_counted_since_the_start_outlives_a_fork(bench):
    client = bench.start(LONG)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    commit_steps(learner, actor, 1)
    before = dict(bench.coordinator.run.state.tokens)
    assert before["consumed"]
    fork(learner, 1)
    assert dict(bench.coordinator.run.state.tokens) == before


@pytest.mark.parametrize("dead", [3, 2])
def test_trackers_get_the_steps_of_the_younger_lineage_too(bench, dead):
    client = bench.start(LONG)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    commit_steps(learner, actor, dead)
    bench.stop()
    client = bench.start(LONG)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    fork(learner, 1)
    commit_steps(learner, actor, 2)
    bench.stop()
    seen = [(metrics["lineage"], step) for step, metrics in bench.tracker.seen]
    assert seen[:4] == [(0, step) for step in range(4)][: dead + 1] + seen[dead + 1 : 4]
    assert seen[-2:] == [(1, 2), (1, 3)]


def test_evaluations_of_dead_steps_are_neither_tracked_nor_best(bench):
    plan = changed(LONG, evaluations=(replace(HELDOUT, every_steps=1),))
    client = bench.start(plan)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    commit_steps(learner, actor, 2)
    run = bench.coordinator.run
    for key, one in run.state.evaluations.items():
        one.summary = {"accuracy": {"value": float(key[3]), "low": 0.0, "high": 1.0}}
    run.state.ancestry = ((1, None), (0, 1))
    assert sorted((one.lineage, one.step) for one in run.state.results()) == [(0, 0), (0, 1)]
    assert housekeeping._evaluated(run, 2) == {}


def test_groups_that_entered_before_a_fork_are_begun_when_its_steps_let_them_in(bench):
    per_step = LONG.train.tasks_per_step
    client = bench.start(changed(LONG, staleness_max=1))
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    commit_steps(learner, actor, 2)
    fork(learner, 0)
    assert actor.claim(tasks_max=99).tasks == ()  # the first two steps have theirs

    commit_steps(learner, actor, 1)
    begun = [(task.ordinal, task.version.step) for task in actor.claim(tasks_max=99).tasks]
    assert begun == [(ordinal, 1) for ordinal in range(2 * per_step, 3 * per_step)]
