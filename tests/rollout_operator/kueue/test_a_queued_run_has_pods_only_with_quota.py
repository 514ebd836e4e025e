"""Gated, admitted, evicted, queued again, finished: pods only while the queue counts them."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queues import QueuedWorld
from worlds import SPEC

from rollout_api.conditions import Reason
from rollout_operator.run.plan.model import Blocked

TWO = {**SPEC, "learner": {"nodes": 2}, "actors": {"replicas": 3}}


def running(**settings_):
    world = QueuedWorld(spec=TWO, **settings_)
    world.settle(2)
    world.admit()
    world.settle()
    assert world.condition("Ready") == ("True", "Running")
    return world


def drain(world):
    """Long enough for the cut, which nobody answers here, and for every pod to go."""
    for _ in range(40):
        world.tick(10)


def test_a_run_without_quota_has_no_children():
    world = QueuedWorld(spec=TWO)
    world.settle()
    assert world.steps == ["Ask"]
    assert world.workloads == {} and world.records == {}
    assert world.condition("Ready") == ("False", "Queued")
    assert world.condition("Admitted") == ("False", "Queued")
    assert world.condition("Reconciling") == ("True", "Queued")
    assert world.condition("Stalled") is None
    assert world.status.get("attempt", 0) == 0


def test_reserved_quota_is_not_enough():
    world = QueuedWorld(spec=TWO)
    world.settle(2)
    world.say("QuotaReserved", "True", "QuotaReserved")
    world.settle(3)
    assert world.workloads == {}


def test_an_admitted_run_starts_and_says_so_once():
    world = running()
    assert world.condition("Admitted") == ("True", "QuotaReserved")
    assert world.condition_of("PodsReady") == ("True", "Started")
    assert world.notes == ["Starting", "QuotaReserved", "Running"]
    assert world.steps == ["Ask", "PodsReady", "PodsReady"]


def test_what_the_queue_says_reaches_the_run():
    world = QueuedWorld(spec=TWO)
    world.settle(2)
    world.say("QuotaReserved", "False", "Pending", "couldn't assign flavors: insufficient quota")
    world.tick()
    ready = next(one for one in world.status["conditions"] if one["type"] == "Ready")
    assert "insufficient quota" in ready["message"]
    assert world.condition("Stalled") is None


def test_a_queue_that_does_not_exist_is_for_a_person_to_mend():
    world = QueuedWorld(spec=TWO)
    world.settle(2)
    world.say("QuotaReserved", "False", "Inadmissible", "LocalQueue gpus doesn't exist")
    world.tick()
    assert world.condition("Stalled") == ("True", "Queued")


def test_an_evicted_run_leaves_in_order_and_queues_again():
    world = running()
    world.evict()
    seen = []
    for _ in range(40):
        world.tick(10)
        seen.append({role: count for role, count in world.replicas().items() if count})
    assert {"coordinator": 1, "actor": 3} in seen
    assert {"coordinator": 1} in seen
    assert world.pods == {}
    assert world.condition("Suspended") == ("True", "Evicted")
    assert world.condition("Ready") == ("False", "Queued")
    assert world.condition_of("QuotaReserved") == ("False", "Pending")
    assert world.condition_of("Admitted") == ("False", "NoReservation")
    assert world.condition_of("Requeued") == ("True", "Preempted")
    assert world.condition_of("PodsReady") == ("False", "WaitForStart")
    assert "admission" not in world.live["status"]
    assert "startTime" not in world.status
    assert world.steps.count("Requeue") == 1
    assert "Evicted" in world.notes


def test_an_evicted_run_goes_on_as_a_new_attempt_with_the_same_workload():
    world = running()
    world.evict()
    drain(world)
    world.admit()
    world.settle()
    assert world.condition("Ready") == ("True", "Running")
    assert world.condition("Suspended") is None
    assert world.status["attempt"] == 2
    assert world.made == 1


def test_quota_is_held_until_the_last_pod_is_gone():
    world = running()
    world.frozen_pods = True
    world.evict()
    drain(world)
    assert world.condition_of("QuotaReserved") == ("True", "QuotaReserved")
    assert "Requeue" not in world.steps
    world.frozen_pods = False
    drain(world)
    assert world.condition_of("QuotaReserved") == ("False", "Pending")


@pytest.mark.parametrize(
    ("reason", "requeued"),
    [("Preempted", "True"), ("Deactivated", "False"), ("PodsReadyTimeout", "False")],
)
def test_who_is_queued_again_at_once_is_as_for_kueues_own_jobs(reason, requeued):
    world = running()
    world.evict(reason)
    drain(world)
    assert world.condition_of("Requeued") == (requeued, reason)


def test_a_held_workload_is_named():
    world = running()
    world.live["spec"]["active"] = False
    world.evict("Deactivated")
    drain(world)
    assert world.condition("Stalled") == ("True", "Queued")
    message = next(one for one in world.status["conditions"] if one["type"] == "Stalled")["message"]
    assert "spec.active" in message


def test_a_suspended_run_gives_its_quota_back_and_asks_anew():
    world = running()
    world.change(suspend=True)
    drain(world)
    assert world.condition("Suspended") == ("True", "Suspended")
    assert world.live is None
    world.change(suspend=False)
    world.settle(3)
    assert world.made == 2
    world.admit()
    world.settle()
    assert world.status["attempt"] == 2
    assert world.condition("Ready") == ("True", "Running")


def test_a_run_that_may_not_start_holds_no_place():
    world = QueuedWorld(spec=TWO)
    world.settle(2)
    world.admit()
    world.gate = Blocked(reason=Reason.RUNTIME_NOT_FOUND, message="gone")
    world.settle()
    assert world.live is None
    assert world.condition("Ready") == ("False", "RuntimeNotFound")


def test_a_finished_run_says_so_when_its_pods_are_gone():
    world = running()
    world.report(step=400, attempt=1, outcome={"kind": "Succeeded", "reason": "Done"})
    world.tick()
    assert world.condition("Finished") == ("True", "Succeeded")
    assert world.condition_of("Finished") is None
    world.settle()
    assert world.pods == {}
    assert world.condition_of("Finished") == ("True", "Succeeded")
    assert world.live["metadata"]["finalizers"] == []


def test_a_failed_run_gives_its_quota_back_too():
    world = running()
    world.report(step=4, attempt=1, outcome={"kind": "Failed", "reason": "RewardError"})
    world.settle()
    assert world.condition_of("Finished") == ("True", "Failed")


def test_the_workload_goes_with_the_children():
    world = running()
    world.change(limits={"ttlSecondsAfterFinished": 5})
    world.report(step=400, attempt=1, outcome={"kind": "Succeeded", "reason": "Done"})
    world.settle(20)
    assert world.removed
    assert world.live is None


def test_an_edit_before_admission_changes_the_question():
    world = QueuedWorld(spec=TWO)
    world.settle(2)
    world.change(actors={"replicas": 5})
    world.settle(3)
    counts = {one["name"]: one["count"] for one in world.live["spec"]["podSets"]}
    assert counts == {"coordinator": 1, "learner": 2, "actor": 5}
    assert world.steps == ["Ask", "Change"]


def test_an_edit_between_admission_and_start_asks_anew():
    world = QueuedWorld(spec=TWO)
    world.settle(2)
    world.admit()
    world.change(actors={"replicas": 5})
    world.settle(2)
    assert world.workloads == {}
    world.settle(4)
    assert world.made == 2


def test_a_queue_named_while_the_run_lives_evicts_nobody():
    world = QueuedWorld(spec=TWO, queue="")
    world.settle()
    world.queue = "gpus"
    world.settle()
    assert world.condition("Ready") == ("True", "Running")
    assert world.condition("Admitted") == ("True", "NoQueue")
    assert world.steps == []


def test_a_run_whose_workload_was_taken_away_leaves_and_asks_anew():
    world = running()
    world.live = None
    drain(world)
    assert world.pods == {}
    assert world.made == 2
    assert world.condition("Ready") == ("False", "Queued")


def test_a_deleted_workload_is_let_go_when_the_pods_are_gone():
    world = running()
    world.live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.frozen_pods = True
    drain(world)
    assert world.live is not None
    world.frozen_pods = False
    drain(world)
    assert world.made == 2


def test_kueue_taken_away_leaves_live_runs_alone():
    world = running()
    world.live, world.served = None, False
    world.settle()
    assert world.condition("Ready") == ("True", "Running")
    assert world.condition("Admitted") == ("True", "QuotaReserved")


# -- scaling ------------------------------------------------------------------------------------------


def test_actors_scale_within_their_quota():
    world = running()
    world.change(actors={"replicas": 1})
    world.settle()
    assert world.replicas()["actor"] == 1
    world.change(actors={"replicas": 3})
    world.settle()
    assert world.replicas()["actor"] == 3
    assert world.condition("ActorsReady") == ("True", "ActorsReady")


def test_actors_beyond_their_quota_are_refused_by_name():
    world = running()
    world.change(actors={"replicas": 8})
    world.settle()
    assert world.replicas()["actor"] == 3
    assert world.condition("ActorsReady") == ("False", "PartiallyAdmitted")
    assert world.condition("Ready") == ("True", "Running")
    world.change(suspend=True)
    drain(world)
    world.change(suspend=False)
    world.settle(3)
    world.admit()
    world.settle()
    assert world.replicas()["actor"] == 8


def test_autoscaled_actors_ask_for_the_most_and_take_what_they_get():
    world = QueuedWorld(spec={**TWO, "actors": {"replicas": 2, "autoscale": {"min": 1, "max": 6}}})
    world.settle(2)
    asked = next(one for one in world.live["spec"]["podSets"] if one["name"] == "actor")
    assert (asked["count"], asked["minCount"]) == (6, 1)
    world.admit(actor=1)
    world.settle()
    assert world.replicas()["actor"] == 1


# -- whatever happens ---------------------------------------------------------------------------------

EVENTS = ["admit", "evict", "suspend", "crash", "delete", "scale", "tick"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(EVENTS), max_size=10),
    st.lists(st.booleans(), min_size=10, max_size=10),
    st.integers(0, 2**16),
)
def test_no_pod_is_made_without_quota_and_no_quota_is_given_back_with_pods(events, written, seed):
    world, noise = QueuedWorld(spec=TWO), random.Random(seed)
    for event, status in zip(events, written, strict=False):
        happen(world, event)
        for _ in range(noise.randint(1, 6)):
            before = set(world.pods)
            world.tick(status=status or noise.random() < 0.5, follow=noise.random() < 0.8)
            if not reserved(world):
                assert world.pods == {}, event
            elif not usable(world):
                assert set(world.pods) <= before
    settle_down(world)
    assert world.condition("Ready") == ("True", "Running")
    writes = world.writes + len(world.steps)
    world.settle(3)
    assert world.writes + len(world.steps) == writes


def happen(world, event):
    if event == "admit" and world.live is not None and not reserved(world):
        world.admit()
    elif event == "evict" and usable(world):
        world.evict()
    elif event == "suspend":
        world.change(suspend=not world.spec.get("suspend", False))
    elif event == "crash" and "run-learner-0" in world.pods:
        world.crash("run-learner-0", 1)
    elif event == "delete" and world.live is not None:
        world.live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    elif event == "scale":
        world.change(actors={"replicas": 1 + world.generation % 4})


def settle_down(world):
    world.change(suspend=False)
    for _ in range(60):
        world.tick(10)
        waits = world.live is not None and "deletionTimestamp" not in world.live["metadata"]
        if waits and not reserved(world):
            world.admit()


def reserved(world):
    return world.condition_of("QuotaReserved") == ("True", "QuotaReserved")


def usable(world):
    quota = world.observe().quota
    return quota is not None and quota.usable


@pytest.mark.parametrize("kueue", ["there", "taken away"])
def test_a_learner_that_is_late_with_quota_is_kueues_to_send_back(kueue):
    late = QueuedWorld(
        spec={**TWO, "limits": {"gangSeconds": 60}}, pending=frozenset({"learner", "actor"})
    )
    late.settle(2)
    late.admit()
    late.settle(2)
    if kueue == "taken away":
        late.live, late.served = None, False
    for _ in range(20):
        late.tick(10)
    assert late.replicas() == {"coordinator": 1, "learner": 2, "actor": 0}
    assert late.workloads["learner"][0].gang_tries == 0
    assert late.condition("Ready") == ("False", "Starting")
    if kueue == "there":
        assert late.condition_of("PodsReady") == ("False", "WaitForStart")
        late.evict("PodsReadyTimeout")
        drain(late)
        assert set(late.replicas().values()) == {0}
        assert late.condition("Suspended") == ("True", "Evicted")
