"""Start: coordinator, learner, actors. Suspension: cut, learner, actors, coordinator. End: workers first."""

from datetime import timedelta

import pytest
from worlds import BEGIN, SPEC, World

from rollout_api.conditions import Reason
from rollout_operator.run.plan.model import Blocked


def test_the_first_pass_makes_the_children_and_starts_only_the_coordinator():
    world = World()
    world.tick(follow=False)

    assert world.replicas() == {"coordinator": 1, "learner": 0, "actor": 0}
    assert world.condition("Ready") == ("False", "Starting")
    assert world.condition("Reconciling") == ("True", "Starting")
    assert world.status["attempt"] == 1


def test_the_learner_waits_for_the_coordinator_and_actors_for_the_learner():
    world = World(pending=frozenset({"learner"}))
    world.settle()
    assert world.replicas() == {"coordinator": 1, "learner": 1, "actor": 0}

    world.pending = frozenset()
    world.lose("run-learner-0")
    world.follow()
    world.settle()
    assert world.replicas() == {"coordinator": 1, "learner": 1, "actor": 1}
    assert world.condition("Ready") == ("True", "Running")
    assert world.condition("Reconciling") is None


def test_counts_speak_of_the_pods_there_shall_be_even_before_they_may_start():
    world = World(spec={**SPEC, "actors": {"replicas": 3}, "learner": {"nodes": 2}})
    world.tick(follow=False)
    assert world.counts("actors") == (0, 3)
    assert world.counts("learner") == (0, 2)
    conditions = {one["type"]: one["message"] for one in world.status["conditions"]}
    assert conditions["ActorsReady"] == "0 of 3 actors are ready; they start once the learner runs"
    assert "once the coordinator is ready" in conditions["LearnerReady"]
    world.settle()
    assert world.counts("actors") == (3, 3)


def test_a_settled_run_needs_no_write():
    world = World()
    world.settle()
    writes = world.writes
    for seconds in (1, 600, 3600):
        plan = world.tick(seconds)
        assert plan.status is None
    assert world.writes == writes


def test_a_healthy_run_says_little():
    world = World()
    world.settle()
    world.report(step=400, outcome={"kind": "Succeeded", "reason": "Done"})
    world.settle()
    assert world.notes == ["Starting", "Running", "Succeeded"]


def test_success_is_what_the_coordinator_says_and_ends_everything():
    world = World()
    world.settle()
    world.report(step=400, outcome={"kind": "Succeeded", "reason": "Done", "message": "400 steps"})
    plan = world.tick(follow=False)
    assert plan.wanted is None
    assert world.condition("Finished") == ("True", "Succeeded")
    assert world.condition("Ready") == ("True", "Succeeded")

    world.tick(follow=False)
    assert world.replicas() == {"coordinator": 1, "learner": 0, "actor": 0}
    world.settle()
    assert set(world.replicas().values()) == {0}
    assert world.condition("Ready") == ("True", "Succeeded")
    assert world.condition("Stalled") is None


def test_failure_is_stalled_for_kstatus_and_names_its_reason():
    world = World()
    world.settle()
    world.report(step=3, outcome={"kind": "Failed", "reason": "RewardError", "message": "nan"})
    world.settle()
    assert world.condition("Finished") == ("True", "Failed")
    assert world.condition("Stalled") == ("True", "RewardError")


@pytest.mark.parametrize(
    ("outcome", "said", "unsaid"),
    [
        ({"kind": "Succeeded", "reason": "Done", "message": "400 steps"}, "Complete", "Failed"),
        ({"kind": "Failed", "reason": "RewardError", "message": "nan"}, "Failed", "Complete"),
    ],
)
def test_an_end_is_told_in_the_words_of_a_job_too_and_stays(outcome, said, unsaid):
    world = World()
    world.settle()
    assert world.condition("Complete") is world.condition("Failed") is None
    world.report(step=400, outcome=outcome)
    for _ in range(3):
        world.settle()
        status, reason = world.condition(said)
        assert (status, reason) == ("True", world.condition("Ready")[1])
        assert world.condition(unsaid) is None
        assert world.message(said) == world.message("Finished")


def test_suspension_asks_for_the_cut_then_learner_actors_coordinator():
    world = World()
    world.settle()
    world.change(suspend=True)
    world.tick()
    assert world.stops == 1
    assert world.replicas() == {"coordinator": 1, "learner": 1, "actor": 1}
    assert world.condition("Reconciling") == ("True", "Draining")

    world.report(step=5, outcome={"kind": "Stopped", "reason": "Suspended"}, attempt=1)
    seen = []
    for _ in range(8):
        world.tick(follow=False)
        seen.append(tuple(world.replicas().values()))
        world.follow()
    assert seen[:3] == [(1, 0, 1), (1, 0, 0), (0, 0, 0)]
    assert world.condition("Suspended") == ("True", "Suspended")
    assert world.condition("Ready") == ("False", "Suspended")


def test_a_cut_that_never_comes_is_not_waited_for_for_ever():
    world = World()
    world.settle()
    world.change(suspend=True)
    for _ in range(40):
        world.tick(5)
    assert world.condition("Suspended") == ("True", "Suspended")


def test_suspended_is_not_said_while_a_pod_is_left():
    world = World()
    world.settle()
    world.change(suspend=True)
    world.frozen_pods = True
    for _ in range(40):
        world.tick(5)
    assert world.condition("Suspended") is None
    world.frozen_pods = False
    world.follow()
    world.settle()
    assert world.condition("Suspended") == ("True", "Suspended")


def test_resuming_is_a_new_attempt_and_suspended_time_does_not_count():
    world = World(spec={**SPEC, "limits": {"activeSeconds": 1000, "noProgressSeconds": 900}})
    world.settle()
    world.report(step=1, outcome={"kind": "Stopped", "reason": "Suspended"}, attempt=1)
    world.now = BEGIN + timedelta(seconds=400)
    world.change(suspend=True)
    world.settle()
    world.now += timedelta(days=3)
    world.change(suspend=False)
    world.settle()
    assert world.status["attempt"] == 2
    assert world.condition("Ready") == ("True", "Running")
    assert 400 <= world.status["activeSeconds"] <= 420

    world.now += timedelta(seconds=600)
    world.tick()
    assert world.condition("Stalled") == ("True", "ActiveSecondsExceeded")


def test_a_run_made_suspended_has_no_children_until_it_is_let_go():
    world = World(spec={**SPEC, "suspend": True})
    world.settle()
    assert not world.records
    assert world.condition("Suspended") == ("True", "Suspended")
    world.change(suspend=False)
    world.settle()
    assert world.status["attempt"] == 1
    assert world.condition("Ready") == ("True", "Running")


def test_what_stands_in_the_way_is_said_and_nothing_is_made():
    world = World(gate=Blocked(reason=Reason.NO_STORAGE_CLASS, message="none", retry_seconds=5))
    plan = world.tick()
    assert plan.wanted is None
    assert plan.requeue_seconds == 5
    assert world.condition("Stalled") == ("True", "NoStorageClass")

    world.gate = None
    world.settle()
    assert world.condition("Ready") == ("True", "Running")
    assert world.condition("Stalled") is None


def test_waiting_for_another_run_is_progress_not_a_stall():
    gate = Blocked(reason=Reason.WAITING_FOR_RUN, message="waits for run a", stalled=False)
    world = World(gate=gate)
    world.tick()
    assert world.condition("Reconciling") == ("True", "WaitingForRun")
    assert world.condition("Stalled") is None


def test_the_time_to_live_removes_children_and_never_the_run():
    limits = {"ttlSecondsAfterFinished": 100}
    world = World(spec={**SPEC, "limits": limits})
    world.settle()
    world.report(step=400, outcome={"kind": "Succeeded", "reason": "Done"})
    world.settle()
    assert not world.removed
    assert world.plan().requeue_seconds is not None
    world.now += timedelta(seconds=101)
    world.tick()
    assert world.removed
    world.tick()
    writes = world.writes
    world.settle()
    assert world.writes == writes
    assert world.condition("Finished") == ("True", "Succeeded")


@pytest.mark.parametrize("first", ["coordinator", "learner", "actor"])
def test_counts_come_to_nothing_whichever_child_went_before_the_operator_died(first):
    world = World(spec={**SPEC, "limits": {"ttlSecondsAfterFinished": 0}})
    world.settle()
    world.report(step=400, outcome={"kind": "Succeeded", "reason": "Done"})
    while not world.plan().remove_children:
        world.tick()
    del world.workloads[first]
    world.settle()
    assert not world.children()
    counts = [world.counts(field) for field in ("coordinator", "learner", "actors")]
    assert counts == [(0, 0)] * 3


def test_a_run_that_does_not_begin_in_time_has_failed_and_says_who_was_late():
    world = World(pending=frozenset({"coordinator"}))
    world.tick()
    due = world.plan().requeue_seconds
    assert due is not None and due <= 1800
    world.now += timedelta(seconds=1801)
    world.tick()
    assert world.condition("Stalled") == ("True", "PreRunningSecondsExceeded")
    assert world.condition("Finished") == ("True", "Failed")


@pytest.mark.parametrize(
    ("limits", "pending", "seconds", "reason"),
    [
        ({"preRunningSeconds": 300}, {"learner"}, 300, "PreRunningSecondsExceeded"),
        ({"preRunningSeconds": 300, "activeSeconds": 120}, (), 120, "ActiveSecondsExceeded"),
    ],
)
def test_a_deadline_is_looked_at_when_it_is_due_and_after_a_time_away(
    limits, pending, seconds, reason
):
    world = World(spec={**SPEC, "limits": limits}, pending=frozenset(pending))
    world.settle()
    due = BEGIN + timedelta(seconds=seconds)
    plan = world.plan()
    assert world.now + timedelta(seconds=plan.requeue_seconds or 0.0) <= due
    world.now = due - timedelta(seconds=1)
    assert world.plan().requeue_seconds == pytest.approx(1.0)
    world.now = due
    world.tick()
    assert world.condition("Stalled") == ("True", reason)

    away = World(spec={**SPEC, "limits": limits}, pending=frozenset(pending))
    away.settle()
    away.now = due + timedelta(days=1)
    away.tick()
    assert away.condition("Finished") == ("True", "Failed")


def test_suspended_time_does_not_count_towards_a_deadline():
    world = World(spec={**SPEC, "limits": {"activeSeconds": 600}})
    world.settle()
    world.change(suspend=True)
    for _ in range(40):
        world.tick(5)
    used = world.status["activeSeconds"]
    world.now += timedelta(days=1)
    world.change(suspend=False)
    world.settle()
    assert world.condition("Finished") is None
    world.now += timedelta(seconds=601 - used)
    world.tick()
    assert used < 600
    assert world.condition("Stalled") == ("True", "ActiveSecondsExceeded")


def test_the_time_to_live_is_looked_at_when_it_is_due():
    world = World(spec={**SPEC, "limits": {"ttlSecondsAfterFinished": 600}})
    world.settle()
    world.report(step=400, outcome={"kind": "Succeeded", "reason": "Done"})
    world.settle()
    plan = world.plan()
    assert plan.requeue_seconds is not None
    assert 0 < plan.requeue_seconds <= 600
    world.now += timedelta(seconds=plan.requeue_seconds)
    assert world.plan().remove_children


def test_actors_follow_the_spec_and_the_learner_does_not():
    world = World()
    world.settle()
    learner = world.pods["run-learner-0"].uid
    world.change(actors={"replicas": 5})
    world.settle()
    assert world.replicas()["actor"] == 5
    assert world.pods["run-learner-0"].uid == learner
    assert world.settings[-1] == 2


def test_every_generation_is_spoken_about():
    world = World()
    world.settle()
    world.change(limits={"retries": 3})
    world.settle()
    assert world.status["observedGeneration"] == 2
    assert {one["observedGeneration"] for one in world.status["conditions"]} == {2}
    assert world.status["settingsGeneration"] == 2


def test_what_becomes_of_the_runtime_does_not_touch_a_living_attempt():
    world = World()
    world.settle()
    world.gate = Blocked(reason=Reason.CEILING_EXCEEDED, message="lowered")
    plan = world.tick()
    assert plan.status is None
    assert world.condition("Ready") == ("True", "Running")


def test_actors_with_a_range_start_at_its_lower_end_and_follow_the_coordinator():
    world = World(spec={**SPEC, "actors": {"autoscale": {"min": 2, "max": 8}}})
    world.settle()
    assert world.counts("actors") == (2, 2)
    world.report(step=3, actorsWanted=5)
    world.settle()
    assert world.counts("actors") == (5, 5)
