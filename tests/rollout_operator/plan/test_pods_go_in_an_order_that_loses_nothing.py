"""Budgets, grace, volumes and pods of yesterday: what keeps work from being lost, and what must not stay."""

from dataclasses import replace

import pytest
from worlds import SPEC, World, build_inputs

from rollout_operator.run.attempt import render_record
from rollout_operator.run.render.pod_settings import plan_grace_seconds

BUDGET = ("PodDisruptionBudget", "run-learner")


def test_the_learners_budget_is_lifted_once_an_anchor_is_durable():
    world = World()
    world.settle()
    wanted = world.plan().wanted
    assert wanted is not None
    assert BUDGET not in wanted.without

    durable = {"type": "Snapshotted", "status": "True", "reason": "SnapshotTaken"}
    world.report(step=25, conditions=[durable])
    wanted = world.plan().wanted
    assert wanted is not None
    assert wanted.without == {BUDGET}


def test_the_coordinator_outlasts_the_workers():
    inputs = build_inputs()
    graces = {role: plan_grace_seconds(inputs, role) for role in ("learner", "actor")}
    assert plan_grace_seconds(inputs, "coordinator") > max(graces.values())


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_the_ledgers_volume_stays_or_goes_as_the_run_says(policy):
    spec = {**SPEC, "storage": {"ledger": {"sqlite": {}, "deletionPolicy": policy}}}
    record = render_record(build_inputs(spec))
    coordinator = record.child("StatefulSet", "run-coordinator")
    assert coordinator is not None
    assert coordinator["spec"]["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": policy,
        "whenScaled": "Retain",
    }


def test_a_pod_of_an_earlier_attempt_that_is_not_ready_is_deleted_by_the_operator():
    """A StatefulSet alone never gets over a bad image: it waits for the pod that cannot start."""
    world = World()
    world.settle()
    world.change(suspend=True)
    for _ in range(40):
        world.tick(5)
    world.change(suspend=False)
    world.settle()
    assert world.status["attempt"] == 2
    broken = replace(world.pods["run-actors-0"], attempt=1, ready=False, waiting="ImagePullBackOff")
    world.pods["run-actors-0"] = broken
    wanted = world.plan().wanted
    assert wanted is not None
    (deletion,) = wanted.deletions
    assert deletion.pod == broken
    assert not deletion.force


def test_a_ready_pod_of_an_earlier_attempt_is_left_to_its_workload():
    world = World()
    world.settle()
    world.change(suspend=True)
    for _ in range(40):
        world.tick(5)
    world.change(suspend=False)
    world.settle()
    world.pods["run-actors-0"] = replace(world.pods["run-actors-0"], attempt=1)
    wanted = world.plan().wanted
    assert wanted is not None
    assert wanted.deletions == ()
