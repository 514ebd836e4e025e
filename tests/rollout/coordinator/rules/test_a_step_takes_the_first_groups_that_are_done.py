"""Over-provisioning, and deadlines for refills: Fast only, and every sample still ends once."""

from __future__ import annotations

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner
from plans import changed

from rollout.coordinator.rules.batch_selection import (
    GroupView,
    NotReady,
    Ready,
    decide_batch,
    window_end,
)
from rollout.protocol import messages as m
from rollout.protocol import routes

MORE = changed(PLAN, exact=False, tasks_per_step=2, extra_groups=1, steps_max=2)


def window(*states, start=0):
    return {
        start + n: GroupView(state=state, rewards=(0.0, 1.0) if state == "done" else ())
        for n, state in enumerate(states)
    }


def test_enough_are_enough_and_the_rest_is_surplus():
    assert window_end(MORE, 0, {}) == 3
    found = decide_batch(MORE, 0, window("leased", "done", "done"))
    assert isinstance(found, Ready)
    assert (found.kept, found.surplus, found.next_ordinal) == ((1, 2), (0,), 3)


def test_more_than_enough_keeps_the_first_of_them():
    found = decide_batch(MORE, 0, window("done", "done", "done"))
    assert (found.kept, found.surplus) == ((0, 1), (2,))


def test_too_few_are_waited_for_and_a_lost_one_is_made_good():
    assert decide_batch(MORE, 0, window("leased", "done", "open")) == NotReady(ordinal=0, missing=2)
    found = decide_batch(MORE, 0, window("excluded", "done", "done"))
    assert (found.kept, found.excluded, found.surplus) == ((1, 2), (0,), ())
    found = decide_batch(MORE, 0, window("excluded", "expired", "done"))
    assert (found.kept, found.excluded, found.expired) == ((2,), (0,), (1,))


def test_capacity_counts_what_is_asked_for_besides():
    assert window_end(changed(MORE, staleness_max=1), 0, {}) == 6
    assert MORE.train.tasks_total == 6
    assert MORE.train.steps_total == 2
    assert changed(MORE, num_tasks=5).train.steps_total == 1


@pytest.fixture
def crew(bench):
    def started(plan=MORE):
        client = bench.start(plan)
        return client, FakeLearner(client, bench.store), FakeActor(client)

    return started


def test_every_sample_ends_once_and_late_results_are_refused(crew):
    client, learner, actor = crew()
    tasks = actor.claim().tasks
    assert len(tasks) == 3
    actor.submit(actor.play(tasks[1]), actor.play(tasks[2]))
    batch = learner.ask()
    assert [group.ordinal for group in batch.groups] == [1, 2]
    learner.commit(batch)
    assert actor.submit(actor.play(tasks[0])).accepted == (False,)
    status = client.status()
    assert status.dispositions == {"consumed": 4, "surplus": 2, "pending": 6}


def test_a_group_that_comes_between_batch_and_commit_is_surplus(crew, bench):
    client, learner, actor = crew()
    tasks = actor.claim().tasks
    actor.submit(actor.play(tasks[1]), actor.play(tasks[2]))
    batch = learner.ask()
    assert actor.submit(actor.play(tasks[0])).accepted == (True,)
    learner.commit(batch)
    assert client.status().dispositions == {"consumed": 4, "surplus": 2, "pending": 6}
    with bench.reader() as ledger:
        assert [view.trajectory.ordinal for view in ledger.samples(1)] == [1, 1, 2, 2]


def test_a_committed_batch_is_replayed_as_it_was(crew, bench):
    _, learner, actor = crew()
    tasks = actor.claim().tasks
    actor.submit(actor.play(tasks[2]), actor.play(tasks[0]))
    batch = learner.ask()
    learner.commit(batch)
    client = bench.start(MORE)
    learner = FakeLearner(client, bench.store)
    again = learner.call(routes.REPLAY, m.ReplayRequest(step=1))
    assert (again.ids, again.cursor) == (batch.ids, batch.cursor)


def test_a_refill_has_a_deadline_of_its_own(crew, bench):
    plan = changed(
        PLAN, exact=False, waves_max=3, sample_wait_seconds=10.0, steps_max=1, lease_seconds=1000.0
    )
    client, learner, actor = crew(plan)
    run, clock = bench.coordinator.run, bench.hold_clock()
    first = actor.claim().tasks
    actor.reward = lambda task, sample: float(sample % 2) if task.ordinal == 0 else 0.0
    assert all(actor.submit(*map(actor.play, first)).accepted)
    refill = actor.claim().tasks
    assert refill, "one group had no signal"
    assert learner.ask().waiting is not None

    clock.now += 9.0
    assert learner.ask().waiting is not None
    clock.now += 2.0
    learner.ask()
    assert run.state.groups[refill[0].ordinal].state == "expired"
    newer = actor.claim(held=tuple(task.task_id for task in refill)).tasks
    assert newer, "what expired is made good"
    assert run.state.groups[newer[0].ordinal].state == "leased"
    clock.now += 5.0
    assert learner.ask().waiting is not None, "a new refill is given its time"
    assert run.state.groups[newer[0].ordinal].state == "leased"
    clock.now += 6.0
    batch = learner.ask()
    assert [group.ordinal for group in batch.groups] == [0]
    learner.commit(batch)
    assert client.status().dispositions["expired"] == 2 * (len(refill) + len(newer))
