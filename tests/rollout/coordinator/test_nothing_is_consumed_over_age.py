"""``maxStaleness`` bounds what a step consumes, whatever was given up, came late or was allowed before."""

from coordinator_kit import PLAN, FakeActor, FakeLearner
from plans import changed

from rollout.coordinator.rules.batch_selection import GroupView, expire_old

WAIT_SECONDS = 1.0
SYNCHRONOUS = changed(
    PLAN, exact=False, steps_max=5, sample_wait_seconds=WAIT_SECONDS, lease_seconds=30.0
)


def wait_too_long(learner, clock):
    """The learner waits from now on, and asks again past the bound."""
    learner.ask()
    clock.now += 2 * WAIT_SECONDS
    return learner.ask()


def ages(batch):
    """Of each group: the step of the policy that consumes it minus that of its oldest token."""
    return [batch.step - 1 - group.trajectories[0].spans[0].step for group in batch.groups]


def test_a_group_that_was_given_up_does_not_come_back_beside_its_refill(bench):
    client = bench.start(changed(SYNCHRONOUS, waves_max=2))
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    actor.submit(actor.play(actor.claim().tasks[0]))
    actor = FakeActor(client)
    clock = bench.hold_clock()
    wait_too_long(learner, clock)
    refill = actor.claim().tasks
    actor.submit(*map(actor.play, refill))
    first = learner.ask()
    learner.commit(first)
    actor.work()
    assert [task.task_id for task in refill] == ["t/2", "t/3"]
    assert [group.ordinal for group in first.groups] == [0, 2]
    assert ages(first) + ages(learner.ask()) == [0, 0, 0, 0]


def test_a_restart_between_batch_and_commit_changes_nothing_of_the_batch(bench):
    client = bench.start(SYNCHRONOUS)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    done, late = actor.claim().tasks
    actor.submit(actor.play(done))
    handed_out = wait_too_long(learner, bench.hold_clock())
    assert actor.submit(actor.play(late)).accepted == (False,)
    again = FakeLearner(bench.start(SYNCHRONOUS), bench.store).ask()
    assert again.ids == handed_out.ids
    assert [group.ordinal for group in again.groups] == [0]


def test_groups_that_became_too_old_are_expired_and_counted(bench):
    client = bench.start(changed(SYNCHRONOUS, staleness_max=1))
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    actor.work()
    learner.commit(learner.ask())
    client = bench.start(SYNCHRONOUS)
    learner = FakeLearner(client, bench.store)
    actor = FakeActor(client)
    assert learner.ask().stop == "AllSamplesLost"


def test_the_age_is_that_of_the_policy_that_consumes():
    window = {
        0: GroupView(state="done", rewards=(0.0, 1.0), oldest_step=3),
        1: GroupView(state="done", rewards=(0.0, 1.0), oldest_step=4),
        2: GroupView(state="leased"),
    }
    states = {
        step: [
            one.state for one in expire_old(changed(PLAN, staleness_max=1), step, window).values()
        ]
        for step in (4, 5, 6)
    }
    assert states == {
        4: ["done", "done", "leased"],
        5: ["expired", "done", "leased"],
        6: ["expired", "expired", "leased"],
    }
