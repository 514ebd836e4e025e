"""A group start is a new incarnation of every rank; late pods are waited for; disruptions are free."""

from dataclasses import replace
from datetime import timedelta

import pytest
from worlds import SPEC, World

from rollout_api.conditions import Reason
from rollout_operator.cache.children import Node
from rollout_operator.run.plan.learner_group import FREE_RESTARTS
from rollout_operator.run.plan.model import Blocked

TWO = {**SPEC, "learner": {"nodes": 2}}


def started(spec=TWO, **changes):
    world = World(spec=spec, **changes)
    world.settle()
    assert world.condition("LearnerReady") == ("True", "LearnerReady")
    return world


def test_a_failed_rank_restarts_every_rank_and_no_actor():
    world = started()
    actor = world.pods["run-actors-0"].uid
    before = {n: p.uid for n, p in world.pods.items() if p.role == "learner"}
    world.crash("run-learner-1", 1, "boom")
    world.settle()

    after = {n: p.uid for n, p in world.pods.items() if p.role == "learner"}
    assert world.incarnation == 2
    assert not set(before.values()) & set(after.values())
    assert world.pods["run-actors-0"].uid == actor
    assert world.condition("LearnerReady") == ("True", "LearnerReady")
    assert world.status["learner"]["restarts"] == 1


def test_the_coordinators_word_restarts_the_group_once():
    world = started()
    world.report(step=4, group={"incarnation": 1, "stage": "Failed", "message": "rank 1: oom"})
    world.settle()
    assert world.incarnation == 2


def test_a_lost_pod_restarts_the_group_without_a_retry():
    world = started()
    world.lose("run-learner-0")
    world.settle()
    assert world.incarnation == 2
    assert world.workloads["learner"][0].disruptions == 1


def test_a_pod_replaced_while_nobody_looked_restarts_the_group():
    world = started()
    world.now += timedelta(seconds=60)
    world.lose("run-learner-0")
    world.follow()
    world.settle()
    assert world.incarnation == 2


def test_pods_that_are_only_late_are_waited_for():
    world = World(spec=TWO, pending=frozenset({"learner"}))
    for _ in range(20):
        world.tick(10)
    assert world.incarnation == 1
    assert world.replicas()["learner"] == 2


def test_preemption_consumes_no_retry():
    world = started({**TWO, "limits": {"retries": 0}})
    pod = world.pods["run-learner-0"]
    world.pods[pod.name] = replace(pod, disrupted=True)
    world.settle()
    assert world.incarnation == 2
    assert world.condition("Finished") is None


def test_retries_run_out():
    world = started({**TWO, "limits": {"retries": 2}})
    for _ in range(3):
        world.crash("run-learner-0", 1, "boom")
        world.settle(20)
        world.now += timedelta(seconds=600)
    assert world.condition("Finished") == ("True", "Failed")
    assert world.condition("Stalled") == ("True", "RetriesExhausted")
    assert "boom" in next(
        one["message"] for one in world.status["conditions"] if one["type"] == "Ready"
    )


def test_later_restarts_wait_longer():
    world = started()
    for _ in range(3):
        world.crash("run-learner-0", 1)
        world.settle(4)
    assert world.incarnation == 4
    world.crash("run-learner-0", 1)
    world.tick()
    assert world.condition("LearnerReady") == ("False", "Restarting")
    assert world.incarnation == 4
    world.now += timedelta(seconds=11)
    world.tick()
    assert world.incarnation == 5


@pytest.mark.parametrize("died_before_status", [True, False])
def test_an_operator_that_dies_in_the_middle_starts_the_group_anew_only_once(died_before_status):
    world = started()
    world.crash("run-learner-1", 1)
    world.tick(status=not died_before_status)
    world.settle()
    assert world.incarnation == 2


def test_an_incomplete_group_gives_its_devices_back_and_tries_again():
    world = World(spec={**TWO, "limits": {"gangSeconds": 100}})
    world.pending = frozenset({"learner"})
    world.settle()
    assert world.replicas()["learner"] == 2
    world.now += timedelta(seconds=101)
    world.tick()
    assert set(world.replicas().values()) == {0}
    assert world.condition("Ready") == ("False", "GangIncomplete")
    due = world.plan().requeue_seconds
    assert due is not None and 10 <= due <= 60
    world.settle(5)
    assert set(world.replicas().values()) == {0}

    world.pending = frozenset()
    world.now += timedelta(seconds=60)
    world.settle()
    assert world.condition("Ready") == ("True", "Running")
    assert world.workloads["learner"][0].gang_tries == 1
    assert world.workloads["learner"][0].disruptions == 1
    assert world.notes == ["Starting", "GangIncomplete", "Restarting", "Running"]


def test_a_silent_node_is_named_and_its_pods_are_forced_away_only_when_it_is_gone():
    world = started(watches_nodes=True, nodes={"node-a": Node(name="node-a", version=1)})
    since = world.now
    world.nodes = {"node-a": Node(name="node-a", version=2, unready_since=since)}
    world.tick(60)
    assert world.condition("Stalled") is None
    world.now = since + timedelta(seconds=121)
    plan = world.tick(follow=False)
    assert world.condition("Stalled") == ("True", "NodeLost")
    assert plan.wanted is not None and not plan.wanted.deletions

    world.nodes = {}
    plan = world.plan()
    assert plan.wanted is not None
    assert all(one.force for one in plan.wanted.deletions)
    assert len(plan.wanted.deletions) == len(world.pods)


def test_a_coordinator_that_refuses_its_input_ends_the_run_at_once():
    world = started()
    world.crash("run-coordinator-0", 2, "error: model not found")
    world.tick()
    assert world.condition("Stalled") == ("True", "InvalidSpec")
    assert world.condition("Finished") == ("True", "Failed")


def test_a_coordinator_that_died_once_is_left_to_the_kubelet():
    world = started()
    world.crash("run-coordinator-0", 1)
    world.settle()
    assert world.condition("Finished") is None


def test_incarnations_grow_over_attempts_and_the_word_of_an_earlier_one_does_not_count():
    world = started({**TWO, "limits": {"retries": 1}})
    world.crash("run-learner-0", 1)
    world.settle()
    assert world.incarnation == 2
    stopped = {"kind": "Stopped", "reason": "Suspended"}
    group = {"incarnation": 3, "stage": "Failed"}
    world.report(step=4, attempt=1, group=group, outcome=stopped)
    world.change(suspend=True)
    world.settle(20)
    world.change(suspend=False)
    world.settle()
    assert world.incarnation == 3
    assert world.status["learner"]["restarts"] == 0
    assert world.condition("Ready") == ("True", "Running")

    world.crash("run-learner-0", 1)
    world.settle()
    assert world.incarnation == 4
    assert world.condition("Finished") is None


def test_a_learner_whose_workload_was_deleted_comes_back_beyond_its_incarnation():
    world = started()
    del world.workloads["learner"]
    for name in ("run-learner-0", "run-learner-1"):
        world.lose(name)
    world.settle()
    assert world.incarnation == 2
    assert world.condition("LearnerReady") == ("True", "LearnerReady")


def notes_of(plan):
    return [(note.reason.value, note.key) for note in plan.notes]


def test_a_restart_is_told_once_also_by_an_operator_that_did_not_order_it():
    world = World()
    world.settle()
    world.crash("run-learner-0", 1, "boom")
    before = dict(world.status)
    told = notes_of(world.tick())
    assert ("Restarting", "incarnation 2") in told
    world.status = before  # the operator died before it wrote the status
    world.settle(1)
    world.status = before
    assert ("Restarting", "incarnation 2") in notes_of(world.plan())


def test_a_suspended_run_says_the_same_at_every_look():
    world = World()
    world.settle()
    world.change(suspend=True)
    world.tick()
    world.report(step=5, outcome={"kind": "Stopped", "reason": "Suspended"}, attempt=1)
    world.settle()
    assert world.condition("Suspended") == ("True", "Suspended")
    assert world.status["learner"]["incarnation"] == 1
    assert world.plan().status is None


def test_a_rank_that_was_replaced_while_the_restart_was_refused_is_not_forgotten():
    world = started()
    before = world.incarnation
    world.lose("run-learner-0")
    world.blocked = Blocked(reason=Reason.FORBIDDEN, message="patch statefulsets: 403")
    world.apply(replace(world.plan(), wanted=None))  # refused, which is all that could be said
    world.blocked = None
    world.now += timedelta(seconds=5)
    world.follow()
    world.settle()
    assert world.incarnation == before + 1


def test_a_rank_that_was_replaced_while_its_group_waits_is_not_forgotten():
    world = started()
    for _ in range(FREE_RESTARTS):
        world.crash("run-learner-0", 1, "boom")
        world.settle(5)
    before = world.incarnation
    world.lose("run-learner-0")
    world.settle(2)
    assert world.condition("LearnerReady") == ("False", "Restarting")
    assert (world.incarnation, "run-learner-0" in world.pods) == (before, True)
    world.settle()
    assert world.incarnation == before + 1
