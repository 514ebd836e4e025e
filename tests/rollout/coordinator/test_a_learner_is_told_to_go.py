"""A notice to go: the learner is stopped at the next boundary, saves what fits into its time, and the run goes on."""

from __future__ import annotations

import threading

import pytest
from coordinator_kit import PLAN, FakeActor, FakeLearner, run_to_end
from plans import changed
from test_the_learners_pods_meet_at_the_coordinator import join, left

from rollout.coordinator.calls.preemption import PREEMPTED
from rollout.errors import Fenced
from rollout.protocol import messages as m
from rollout.protocol import routes

SAVES = changed(PLAN, saves_on_notice=True)
DRAINS = PLAN


def call(client, route, ask):
    return client.as_worker(f"learner-{ask.rank}").call(route, ask)


def leaving(rank=0, group=1, nonce="a", seconds=50.0):
    return m.Leaving(group=group, rank=rank, nonce=f"{rank}{nonce}", seconds=seconds)


def told(learner, seconds):
    ask = m.BatchRequest(step=learner.step + 1, told_seconds=seconds)
    return learner.call(routes.BATCH, ask)


@pytest.fixture
def at_work(bench):
    """A run at its first boundary, its two pods at work."""

    def begin(plan):
        client = bench.start(changed(plan, nodes=2))
        call(client, routes.JOIN, join(0))
        call(client, routes.JOIN, join(1))
        learner, actor = FakeLearner(client, bench.store), FakeActor(client)
        actor.work()
        learner.commit(learner.ask())
        return client, learner, actor

    return begin


@pytest.mark.parametrize(("plan", "saves"), [(SAVES, True), (DRAINS, False)])
def test_its_own_signal_stops_it_at_the_boundary(at_work, bench, plan, saves):
    _, learner, _ = at_work(plan)
    bench.hold_clock()
    answer = told(learner, 30.0)
    assert answer.stop == PREEMPTED
    assert answer.save_seconds == (30.0 if saves else 0.0)


def test_any_pod_may_ask_and_the_first_to_be_killed_counts(at_work, bench):
    client, learner, _ = at_work(SAVES)
    clock = bench.hold_clock()
    assert call(client, routes.LEAVING, leaving(1, seconds=50.0)) == m.MayLeave(saves=True)
    assert call(client, routes.LEAVING, leaving(0, seconds=20.0)) == m.MayLeave(saves=True)
    assert call(client, routes.LEAVING, leaving(1, seconds=50.0)) == m.MayLeave(saves=True)
    clock.now += 4.0
    answer = learner.ask()
    assert answer.stop == PREEMPTED
    assert answer.save_seconds == 16.0


def test_a_learner_that_waits_for_its_batch_hears_it_at_once(at_work):
    client, learner, _ = at_work(SAVES)
    found = []
    waiting = threading.Thread(target=lambda: found.append(learner.ask(wait=30.0)))
    waiting.start()
    call(client, routes.LEAVING, leaving(1))
    waiting.join(60.0)
    assert [one.stop for one in found] == [PREEMPTED]


def test_with_drain_the_pod_is_not_held_up_and_the_others_work_on(at_work):
    client, learner, actor = at_work(DRAINS)
    assert call(client, routes.LEAVING, leaving(1)) == m.MayLeave(saves=False)
    actor.work()
    assert learner.ask().stop is None


def test_a_group_that_has_lost_a_rank_reaches_no_boundary_and_is_not_waited_for(at_work):
    client, _, _ = at_work(SAVES)
    call(client, routes.LEFT, left(1, ok=False, message="exit code 1"))
    assert call(client, routes.LEAVING, leaving(0)) == m.MayLeave(saves=False)


def test_without_time_nobody_tries(at_work):
    client, learner, _ = at_work(SAVES)
    assert call(client, routes.LEAVING, leaving(1, seconds=0.0)) == m.MayLeave(saves=False)
    assert learner.ask().stop is None


def test_a_pod_that_was_replaced_stops_nobody(at_work):
    client, learner, _ = at_work(SAVES)
    with pytest.raises(Fenced, match="another process"):
        call(client, routes.LEAVING, leaving(1, nonce="before"))
    call(client, routes.JOIN, join(0, group=2))
    with pytest.raises(Fenced, match="incarnation 2"):
        call(client, routes.LEAVING, leaving(1))
    assert learner.ask().stop is None


def test_a_coordinator_that_does_not_know_the_pod_stops_nobody(at_work, bench):
    at_work(SAVES)
    client = bench.start(changed(SAVES, nodes=2))
    assert call(client, routes.LEAVING, leaving(1)) == m.MayLeave(saves=False)


def test_a_run_that_stops_saves_whatever_time_it_takes(at_work):
    client, learner, _ = at_work(DRAINS)
    client.call(routes.STOP, m.Stop(reason="Suspended"))
    answer = told(learner, 10.0)
    assert (answer.stop, answer.save_seconds) == ("Suspended", None)
    assert call(client, routes.LEAVING, leaving(0)) == m.MayLeave(saves=False)


def test_the_next_learner_goes_on_from_the_anchor_with_nothing_to_replay(at_work, bench):
    client, learner, actor = at_work(SAVES)
    call(client, routes.LEAVING, leaving(1))
    assert learner.ask().stop == PREEMPTED
    learner.anchor()
    learner.call(routes.LEARNER_OUTCOME, m.Outcome(ok=True, message=PREEMPTED))
    assert client.status().outcome is None
    run = bench.coordinator.run
    now, run.clock = run.clock, lambda: now() + 60.0
    assert "told to go; there is no other one for 60 s" in str(client.status().waiting)
    run.clock = now
    after = FakeLearner(client, bench.store)
    assert (after.started.anchor.step, after.started.replay) == (1, ())
    assert run_to_end(actor, after).stop == "Finished"


def test_a_finished_learner_saves_its_last_anchor_whatever_it_was_told(at_work):
    client, learner, actor = at_work(changed(SAVES, steps_max=2))
    actor.work()
    learner.commit(learner.ask())
    call(client, routes.LEAVING, leaving(1))
    answer = learner.ask()
    assert (answer.stop, answer.save_seconds) == ("Finished", None)
