"""Runs that answer rows or measure a model: coordinator and actors, and an end that the rows decide."""

from datetime import timedelta

import pytest
from worlds import SPEC, World, build_inputs

from rollout_operator.run.render.order import build_order
from rollout_operator.run.render.workloads import build_roles

INFER = {"model": SPEC["model"], "infer": {"data": {"jsonl": {"uri": "/data/rows.jsonl"}}}}
EVALUATE = {
    "model": SPEC["model"],
    "evaluate": {},
    "evaluations": [{"suite": {"builtin": {"name": "arithmetic"}}}],
}
DONE = {"kind": "Succeeded", "reason": "Finished", "message": "4 rows, 0 failed, 9 tokens"}


@pytest.mark.parametrize("spec", [INFER, EVALUATE])
def test_actors_start_with_the_coordinator_and_no_learner_is_made(spec):
    world = World(spec={**spec, "actors": {"replicas": 2}})
    world.tick(follow=False)
    assert world.replicas() == {"coordinator": 1, "actor": 0}
    assert world.message("ActorsReady").endswith("they start once the coordinator is ready")
    world.settle()
    assert world.replicas() == {"coordinator": 1, "actor": 2}
    assert world.condition("Ready") == ("True", "Running")
    assert world.condition("LearnerReady") == ("True", "NoLearnerNeeded")
    assert "learner" not in world.status


def test_the_rows_end_it_and_the_pods_go():
    world = World(spec=INFER)
    world.settle()
    world.report(attempt=1, rows={"total": 4, "done": 4, "tokens": 9}, outcome=DONE)
    world.settle()
    assert world.condition("Complete") == ("True", "Succeeded")
    assert world.message("Finished") == DONE["message"]
    assert set(world.replicas().values()) == {0}
    assert world.notes == ["Starting", "Running", "Succeeded"]


def test_too_many_failed_rows_fail_it_by_name():
    world = World(spec=INFER)
    world.settle()
    failed = {"kind": "Failed", "reason": "TooManyFailedRows", "message": "4 rows, 3 failed"}
    world.report(attempt=1, rows={"total": 4, "done": 1, "failed": 3}, outcome=failed)
    world.settle()
    assert world.condition("Failed") == ("True", "TooManyFailedRows")


def test_a_suspension_needs_no_cut_and_another_attempt_goes_on():
    world = World(spec=INFER)
    world.settle()
    world.change(suspend=True)
    world.settle()
    assert world.stops == 0
    assert world.condition("Suspended") == ("True", "Suspended")
    assert not world.pods
    world.change(suspend=False)
    world.settle()
    assert world.status["attempt"] == 2
    assert world.replicas() == {"coordinator": 1, "actor": 1}


def test_actors_follow_what_the_coordinator_wants_within_the_bounds():
    world = World(spec={**INFER, "actors": {"autoscale": {"min": 1, "max": 4}}})
    world.settle()
    for wanted, runs in ((9, 4), (2, 2), (0, 1)):
        world.report(attempt=1, actorsWanted=wanted, rows={"total": 100, "done": 1})
        world.settle()
        assert world.replicas()["actor"] == runs


@pytest.mark.parametrize("rows", [{"total": 4}, {"total": 4, "failed": 1}])
def test_without_a_row_in_time_it_fails(rows):
    world = World(spec={**INFER, "limits": {"preRunningSeconds": 60}})
    world.settle()
    world.report(attempt=1, rows=rows)
    world.now += timedelta(seconds=60)
    world.settle()
    assert world.condition("Failed") == ("True", "PreRunningSecondsExceeded")
    assert "no first row" in world.message("Failed")


def test_a_row_in_time_is_a_beginning():
    world = World(spec={**INFER, "limits": {"preRunningSeconds": 60}})
    world.settle()
    world.report(attempt=1, rows={"total": 4, "done": 1})
    world.now += timedelta(seconds=600)
    world.settle()
    assert world.condition("Ready") == ("True", "Running")


def test_the_coordinators_account_publishes_where_there_is_no_learner():
    inputs = build_inputs(INFER)
    assert build_roles(inputs) == ("coordinator", "actor")
    authentication = build_order(inputs).authentication
    assert authentication is not None
    accounts = authentication.accounts
    assert accounts[f"system:serviceaccount:ns:{inputs.account('coordinator')}"] == "learner"
    assert f"system:serviceaccount:ns:{inputs.account('learner')}" not in accounts
