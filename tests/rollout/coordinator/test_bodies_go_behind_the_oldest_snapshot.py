"""A coordinator whose manifest says so removes bodies that no kept snapshot replays, and a learner still resumes from each."""

import time

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner, run_to_end, wait_for_outcome
from plans import changed

from rollout.coordinator.duties import retention
from rollout.errors import NoLongerKept
from rollout.protocol import messages as m
from rollout.protocol import routes

LONG = changed(PLAN, exact=False, anchors_kept=2, steps_max=40, bodies_behind=1)
SECONDS_MAX = 60.0


def wait_until(true):
    deadline = time.monotonic() + SECONDS_MAX
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def commit_steps(learner, actor, num):
    for _ in range(num):
        batch = learner.ask()
        while batch.waiting is not None:
            actor.work()
            batch = learner.ask()
        learner.commit(batch)


def kept(bench):
    """For each step whether its bodies are there."""
    with bench.reader() as reader:
        return {
            view.step: all(one.trajectory is not None for one in reader.samples(view.step))
            for view in reader.steps()
        }


def run_with_anchors(bench, plan, *steps):
    client = bench.start(plan)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    for step in steps:
        commit_steps(learner, actor, step - learner.step)
        learner.anchor()
    return learner, actor


def test_bodies_go_when_an_older_snapshot_goes(bench):
    learner, actor = run_with_anchors(bench, LONG, 2, 4, 6)
    wait_until(lambda: bench.coordinator.run.removed_step == 3)
    assert kept(bench) == {step: step > 3 for step in range(1, 7)}
    commit_steps(learner, actor, 1)
    learner.anchor()
    wait_until(lambda: bench.coordinator.run.removed_step == 5)
    assert kept(bench) == {step: step > 5 for step in range(1, 8)}


def test_without_the_setting_everything_stays(bench):
    run_with_anchors(bench, changed(LONG, bodies_behind=None), 2, 4, 6)
    bench.stop()
    assert all(kept(bench).values())
    with bench.reader() as reader:
        assert reader.removed().num_bodies == 0


@pytest.mark.parametrize("lost", [(), (6,)])
def test_a_learner_replays_from_every_snapshot_that_is_kept(bench, lost):
    """The newest one, and the one before where objects of the newest are lost."""
    plan = changed(LONG, bodies_behind=0)
    learner, actor = run_with_anchors(bench, plan, 2, 4, 6)
    commit_steps(learner, actor, 2)
    wait_until(lambda: bench.coordinator.run.removed_step == 4)
    for step in lost:
        bench.store.delete(learner.store.put(b"o%d" % step))
    again = FakeLearner(bench.start(plan), bench.store)
    assert again.started.anchor.step == (4 if lost else 6)
    for record in again.started.replay:
        batch = again.call(routes.REPLAY, m.ReplayRequest(step=record.step))
        assert tuple(name for group in batch.ids for name in group) == record.consumed


def test_a_replay_of_what_is_gone_is_refused_by_name(bench):
    learner, _ = run_with_anchors(bench, LONG, 2, 4, 6)
    wait_until(lambda: bench.coordinator.run.removed_step == 3)
    with pytest.raises(NoLongerKept, match=r"step 2 .* up to 3 are no"):
        learner.call(routes.REPLAY, m.ReplayRequest(step=2))
    assert bench.coordinator.run.state.outcome is None


def test_a_coordinator_goes_on_with_what_another_left(bench, monkeypatch):
    monkeypatch.setattr(retention, "BODIES_MAX", 1)
    monkeypatch.setattr(retention, "REMOVALS_MAX", 1)
    run_with_anchors(bench, LONG, 2, 4, 6)
    bench.stop()
    with bench.reader() as reader:
        assert reader.removed().num_bodies < 3 * PLAN.train.tasks_per_step
    monkeypatch.setattr(retention, "BODIES_MAX", 256)
    bench.start(LONG)
    wait_until(lambda: bench.coordinator.run.removed_step == 3)
    assert kept(bench) == {step: step > 3 for step in range(1, 7)}


def test_a_run_ends_with_its_books_closed_and_its_bodies_gone(bench):
    plan = changed(LONG, anchors_kept=1, bodies_behind=0, steps_max=3)
    client = bench.start(plan)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    run_to_end(actor, learner)
    learner.finish()
    assert wait_for_outcome(client).kind == "Succeeded"
    assert kept(bench) == {1: False, 2: False, 3: False}
    with bench.reader() as reader:
        assert reader.dispositions()["consumed"] == 3 * 2 * 2
