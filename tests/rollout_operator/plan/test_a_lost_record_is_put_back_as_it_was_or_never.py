"""An attempt that was told of is never rendered in another way: its record is put back as it was, or its pods go before another attempt begins."""

from dataclasses import replace

import pytest
from test_children_are_as_kubernetes_needs_them import RUNTIME
from worlds import PLATFORM, SPEC, World, build_inputs

from rollout_api.conditions import Reason
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.run.attempt import build_children, render_record
from rollout_operator.run.plan.attempts import current_attempt, misses_record
from rollout_operator.run.plan.model import Blocked

EDITED = {"env": [{"name": "EDITED", "value": "yes"}]}
LIVE = {
    "actors": {"replicas": 5},
    "limits": {"retries": 9, "ttlSecondsAfterFinished": 60},
    "suspend": False,
    "train": {**SPEC["train"], "maxSteps": 900},
}


def running():
    world = World()
    world.settle()
    assert world.condition("Ready") == ("True", "Running")
    return world


def edited(world):
    """Suspended, edited and resumed while no operator was there, and the record deleted."""
    world.change(suspend=True)
    world.change(suspend=False, **EDITED)
    world.records.clear()
    return world


@pytest.mark.parametrize("field", LIVE)
def test_it_is_put_back_under_its_name_whatever_live_settings_have_become(field):
    world = running()
    told, pods = world.status["configuration"], dict(world.pods)
    world.change(**{field: LIVE[field]})
    world.records.clear()
    world.settle()
    assert (world.status["attempt"], list(world.records)) == (1, [told])
    assert pods.items() <= world.pods.items()


def test_children_of_a_record_that_is_put_back_are_what_they_were():
    before = render_record(build_inputs())
    later = replace(build_inputs({**SPEC, **LIVE}), generation=7, progress_seconds=60.0)
    again = render_record(later)
    assert (again.name, again.children) == (before.name, before.children)


OTHERS = {
    "an edited spec": build_inputs({**SPEC, **EDITED}),
    "another release of the operator": build_inputs(platform=replace(PLATFORM, worker_image="w:2")),
    "another runtime": build_inputs(runtime=RUNTIME),
    "another class of storage": replace(build_inputs(), storage_class="fast"),
    "another access mode": replace(build_inputs(), access_mode="ReadWriteOncePod"),
    "claims of other runs": replace(build_inputs(), sources=("claim",)),
    "another attempt": build_inputs(attempt=2),
    "probes that wait longer": build_inputs({**SPEC, "limits": {"preRunningSeconds": 90_000}}),
}


@pytest.mark.parametrize("why", OTHERS)
def test_what_pods_are_made_from_is_in_its_name(why):
    assert render_record(OTHERS[why]).name != render_record(build_inputs()).name


def test_what_the_gate_lets_pass_is_in_its_name():
    wider = RuntimeSpec.model_validate({"allowed": {"dataCodeNetwork": True}})
    one, other = (build_inputs(runtime=runtime) for runtime in (None, wider))
    assert build_children(one, "record") == build_children(other, "record")
    assert render_record(one).name != render_record(other).name


def test_its_pods_go_after_the_cut_and_then_another_attempt_begins():
    world = edited(running())
    world.tick()
    assert world.stops == 1
    assert world.condition("Reconciling") == ("True", "Draining")
    assert "the record of run attempt 1 was deleted" in world.message("Ready")
    for _ in range(60):
        world.tick(5)
        assert len({pod.attempt for pod in world.pods.values()}) <= 1
    assert (world.status["attempt"], world.condition("Ready")) == (2, ("True", "Running"))
    [record] = world.records
    assert world.status["configuration"] == record


def test_it_goes_on_where_the_edit_is_taken_back_before_the_cut():
    world = edited(running())
    world.change(env=[])
    world.spec.pop("env")
    world.settle()
    assert (world.status["attempt"], world.stops) == (1, 0)
    assert world.condition("Ready") == ("True", "Running")


@pytest.mark.parametrize("ticks", range(1, 40, 3))
def test_whoever_dies_meanwhile_no_attempt_is_rendered_in_two_ways(ticks):
    """Each look is that of another operator: nothing but what is in the cluster is known."""
    world, names = edited(running()), {1: {running().status["configuration"]}}
    for tick in range(80):
        world.tick(5, status=tick % ticks != 0)
        for name, record in world.records.items():
            names.setdefault(record.attempt, set()).add(name)
    assert all(len(one) == 1 for one in names.values()), names
    assert world.condition("Ready") == ("True", "Running")


def test_a_suspension_is_a_suspension():
    world = edited(running())
    world.change(suspend=True)
    for _ in range(40):
        world.tick(5)
    assert (world.condition("Suspended"), world.pods) == (("True", "Suspended"), {})
    assert world.status["attempt"] == 1


def test_what_may_not_start_is_left_as_it_is():
    world = edited(running())
    world.gate = Blocked(reason=Reason.NOT_ALLOWED, message="no")
    pods = dict(world.pods)
    world.settle()
    assert world.pods == pods
    assert world.condition("Stalled") == ("True", "NotAllowed")


def test_only_an_attempt_that_was_told_of_misses_its_record():
    world = World()
    world.tick(status=False)
    world.records.clear()
    assert not misses_record(world.observe())
    world = running()
    world.records.clear()
    assert misses_record(world.observe())
    assert current_attempt(world.observe()) == 1
