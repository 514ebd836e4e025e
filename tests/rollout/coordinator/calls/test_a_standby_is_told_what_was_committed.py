"""Who stands by hears of each committed step once, of an anchor where that makes up for steps, and when it may go."""

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner, run_to_end
from plans import changed

from rollout.errors import CoordinatorError
from rollout.protocol import messages as m
from rollout.protocol import routes


@pytest.fixture
def at_work(bench):
    client = bench.start(changed(PLAN, steps_max=3))
    return client, FakeLearner(client, bench.store), FakeActor(client)


def take_steps(learner, actor, count):
    for _ in range(count):
        actor.work()
        learner.commit(learner.ask())


def follow(client, step=0, lineage=0, *, replays=True):
    ask = m.Follow(lineage=lineage, step=step, replays=replays)
    return client.as_worker("learner").call(routes.FOLLOW, ask)


def test_before_the_first_step_there_is_the_first_version_and_nothing_to_do(at_work):
    client, _, _ = at_work
    told = follow(client)
    assert (told.anchor, told.record, told.stop) == (None, None, None)
    assert told.initial is not None


def test_each_step_comes_with_the_batch_that_it_was_taken_on(at_work):
    client, learner, actor = at_work
    actor.work()
    batch = learner.ask()
    learner.commit(batch)
    take_steps(learner, actor, 1)
    first, second = follow(client), follow(client, step=1)
    assert (first.record.step, first.record.chain) == (1, "c0-1")
    assert first.batch.groups == batch.groups
    assert second.record.step == 2
    assert follow(client, step=2).record is None


def test_an_anchor_makes_up_for_the_steps_before_it_and_only_for_those(at_work):
    client, learner, actor = at_work
    take_steps(learner, actor, 1)
    learner.anchor()
    take_steps(learner, actor, 1)
    assert follow(client).anchor.step == 1
    assert follow(client, step=1).record.step == 2
    assert follow(client, step=1, lineage=7).anchor.step == 1


def test_a_state_of_no_use_is_offered_anchors_only(at_work):
    client, learner, actor = at_work
    take_steps(learner, actor, 2)
    assert follow(client, step=1, replays=False).record is None
    learner.anchor()
    assert follow(client, step=1, replays=False).anchor.step == 2


def test_who_stands_by_replaces_nobody_and_cannot_commit(at_work):
    client, learner, actor = at_work
    actor.work()
    batch = learner.ask()
    follow(client)
    with pytest.raises(CoordinatorError):
        client.as_worker("learner").call(routes.COMMIT, learner.build_commit(batch))
    learner.commit(batch)


def test_it_may_go_once_the_learner_has_said_that_it_is_done_and_not_before(at_work):
    client, learner, actor = at_work
    run_to_end(actor, learner)
    assert follow(client, step=3).stop is None
    learner.finish()
    assert follow(client, step=3).stop


def test_a_run_that_stops_is_stood_by_until_its_learner_has_saved(at_work):
    client, learner, actor = at_work
    take_steps(learner, actor, 1)
    client.call(routes.STOP, m.Stop(reason="enough"))
    assert learner.ask().stop == "enough"
    assert follow(client, step=1).stop is None
    learner.finish()
    assert follow(client, step=1).stop
