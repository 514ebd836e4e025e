"""A group that infrastructure failures reach in part is tried again whole; after the last try survivors make it.

``PLAN`` has groups of two; here of four, three tries, and a quorum of two samples.
"""

from __future__ import annotations

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner, run_to_end, wait_for_outcome
from plans import changed

from rollout.ledger.records import Limits
from rollout.protocol import messages as m
from rollout.protocol import routes

TRIES = 3
FOURS = changed(PLAN, num_samples=4, samples_min=2, attempts_max=TRIES)
LIMITS = Limits(failures_max=TRIES)


class ShakyActor(FakeActor):
    """Loses the samples that ``lost`` names by ordinal, every time."""

    lost: dict[int, set[int]]

    def play(self, task: m.Task) -> m.TaskResult:
        whole = super().play(task)
        lost = self.lost.get(task.ordinal, set()) if task.kind == "train" else set()
        if not lost:
            return whole
        return m.TaskResult(
            task_id=whole.task_id,
            epoch=whole.epoch,
            trajectories=tuple(t for t in whole.trajectories if t.sample not in lost),
            failure=m.Failure(kind="infrastructure", message="a node went away"),
        )


@pytest.fixture
def shaky(bench):
    def start(lost, plan=FOURS):
        client = bench.start(plan, LIMITS)
        learner, actor = FakeLearner(client, bench.store), ShakyActor(client)
        actor.lost = lost
        return client, learner, actor

    return start


def samples_of(batch):
    return {group.ordinal: [t.sample for t in group.trajectories] for group in batch.groups}


def test_survivors_are_no_result_while_another_try_may_bring_the_whole_group(shaky):
    _, learner, actor = shaky({0: {1}})
    actor.work()
    assert learner.ask().waiting is not None
    actor.lost = {}
    actor.work()
    assert samples_of(learner.ask()) == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}


def test_after_the_last_try_survivors_make_the_group_and_the_lost_are_excluded(shaky, bench):
    client, learner, actor = shaky({0: {1, 3}})
    for _ in range(TRIES):
        actor.work()
    batch = learner.ask()
    assert samples_of(batch) == {0: [0, 2], 1: [0, 1, 2, 3]}
    assert batch.num_excluded == 2
    assert list(map(len, batch.ids)) == [2, 4]
    learner.commit(batch)
    assert client.status().dispositions == {"consumed": 6, "excluded": 2, "pending": 8}


def test_below_the_quorum_the_group_is_excluded(shaky):
    client, learner, actor = shaky({0: {0, 1, 2}})
    for _ in range(TRIES):
        actor.work()
    batch = learner.ask()
    assert samples_of(batch) == {1: [0, 1, 2, 3]}
    learner.commit(batch)
    assert client.status().dispositions["excluded"] == 4


def test_without_a_quorum_a_group_is_whole_or_excluded(shaky):
    _, learner, actor = shaky({0: {0}}, changed(FOURS, samples_min=None))
    for _ in range(TRIES):
        actor.work()
    assert samples_of(learner.ask()) == {1: [0, 1, 2, 3]}


def test_a_replayed_step_is_the_same_batch_after_a_restart(shaky, bench):
    _, learner, actor = shaky({0: {1, 3}})
    for _ in range(TRIES):
        actor.work()
    batch = learner.ask()
    client = bench.start(FOURS, LIMITS)
    learner = FakeLearner(client, bench.store)
    again = learner.ask()
    assert (again.ids, again.groups, again.num_excluded) == (batch.ids, batch.groups, 2)
    learner.commit(again)
    replayed = learner.call(routes.REPLAY, m.ReplayRequest(step=1))
    assert (replayed.ids, replayed.groups) == (batch.ids, batch.groups)
    assert replayed.num_excluded == 2
    with bench.reader() as ledger:
        assert [view.trajectory.sample for view in ledger.samples(1)] == [0, 2, 0, 1, 2, 3]


def test_rewards_that_fail_are_nobodys_survivors(shaky):
    client, _, actor = shaky({})
    for _ in range(2):
        task = actor.claim(tasks_max=1).tasks[0]
        made = actor.play(task).trajectories[:3]
        failure = m.Failure(kind="data", message="reward 'mine' raised KeyError: 'answer'")
        actor.submit(
            m.TaskResult(task_id=task.task_id, epoch=task.epoch, trajectories=made, failure=failure)
        )
    assert client.status().outcome.reason == "RewardError"


@pytest.mark.parametrize("waves", [None, 2])
def test_every_sample_ends_once_when_many_are_lost(shaky, bench, waves):
    plan = changed(FOURS, waves_max=waves, steps_max=4)
    lost = {0: {0}, 1: {0, 1, 2}, 3: {2, 3}, 5: {0, 1, 2, 3}, 6: {3}, 9: {1}}
    client, learner, actor = shaky(lost, plan)
    stop = run_to_end(actor, learner)
    assert stop.stop == "Finished"
    learner.finish()
    wait_for_outcome(client)
    bench.stop()
    with bench.reader() as ledger:
        ends = ledger.dispositions()
        admitted = ledger._file.tx.execute("SELECT sum(num_samples) FROM tasks").fetchone()[0]
        consumed = [view for step in range(1, 5) for view in ledger.samples(step)]
    assert ends.pop("pending") == 0
    assert sum(ends.values()) == admitted
    assert ends["consumed"] == len(consumed)
    assert not [v for v in consumed if v.trajectory.sample in lost.get(v.trajectory.ordinal, ())]
    assert {0, 6} <= {view.trajectory.ordinal for view in consumed}


def test_actors_that_die_take_no_try_of_a_group(shaky):
    client, learner, actor = shaky({0: {1}})
    for _ in range(TRIES):
        assert actor.claim(tasks_max=1).tasks[0].ordinal == 0
        successor = ShakyActor(client)
        successor.lost, actor = actor.lost, successor
    actor.work()
    assert learner.ask().waiting is not None, "one failure is not the last try"
    actor.work()
    actor.work()
    assert samples_of(learner.ask()) == {0: [0, 2, 3], 1: [0, 1, 2, 3]}
