"""The attacker starts a small run and scales it, or asks for devices where nobody counts them."""

from dataclasses import replace

import pytest
from worlds import SPEC, World

from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.run.plan.preconditions.checks import (
    actors_ceiling,
    check_platform,
    count_devices,
    resolve_spec,
)
from rollout_operator.webhook.review import review

CLASS = {"name": "h100", "memory": "80Gi", "perNode": 8, "resourceName": "nvidia.com/gpu"}


class Bounded(World):
    """A world whose runtime has ceilings."""

    ceilings: dict

    def observe(self):
        return replace(World.observe(self), runtime=runtime_of(self.ceilings))


def runtime_of(ceilings):
    return RuntimeSpec.model_validate({"ceilings": ceilings, "acceleratorClasses": [CLASS]})


def running(ceilings, **spec):
    world = Bounded(spec={**SPEC, **spec})
    world.ceilings = ceilings
    world.settle()
    return world


def test_scaling_a_live_run_stops_at_the_ceiling_and_says_so():
    world = running({"actorReplicas": 2})
    world.change(actors={"replicas": 4096})
    world.settle()
    assert world.replicas()["actor"] == 2
    assert world.condition("ActorsReady") == ("False", "CeilingExceeded")
    assert world.message("ActorsReady") == (
        "2 of 2 actors are ready; 4096 are wanted, the runtime allows 2"
    )


def test_a_coordinator_that_asks_for_more_gets_no_more():
    world = running({"actorReplicas": 8}, actors={"autoscale": {"min": 1, "max": 4}})
    world.ceilings = {"actorReplicas": 2}
    world.report(step=1, actorsWanted=4)
    world.settle()
    assert world.replicas()["actor"] == 2


@pytest.mark.parametrize(
    ("ceilings", "actors"),
    [
        ({"accelerators": 6}, 2),
        ({"accelerators": 6, "actorReplicas": 1}, 1),
        ({"accelerators": 1}, 0),
        ({}, None),
    ],
)
def test_devices_leave_room_for_so_many_actors_beside_the_learner(ceilings, actors):
    spec = {
        **SPEC,
        "actors": {"accelerator": {"className": "h100", "count": 2}, "replicas": 50},
        "learner": {"accelerator": {"className": "h100", "count": 1}},
    }
    runtime = runtime_of(ceilings)
    assert actors_ceiling(resolve_spec(spec, runtime), runtime) == actors


def test_actors_that_run_stay_when_the_ceiling_is_lowered_and_do_not_come_back_once_gone():
    world = running({"actorReplicas": 4}, actors={"replicas": 4})
    world.ceilings = {"actorReplicas": 2}
    world.settle()
    assert world.replicas()["actor"] == 4
    world.change(actors={"replicas": 1})
    world.settle()
    world.change(actors={"replicas": 4})
    world.settle()
    assert world.replicas()["actor"] == 2


def test_a_range_counts_with_its_most_actors():
    actors = {"accelerator": {"className": "h100", "count": 1}, "autoscale": {"min": 1, "max": 64}}
    runtime = runtime_of({"accelerators": 8})
    spec = resolve_spec({**SPEC, "actors": actors}, runtime)
    assert count_devices(spec) == 64
    assert check_platform(spec, runtime).reason == "CeilingExceeded"


@pytest.mark.parametrize("role", ["actors", "learner"])
@pytest.mark.parametrize("part", ["requests", "limits"])
@pytest.mark.parametrize("name", ["nvidia.com/gpu", "smarter-devices/fuse", "amd.com/gpu"])
def test_devices_outside_accelerator_are_refused(role, part, name):
    spec = {**SPEC, role: {"resources": {part: {name: "1"}}}}
    verdict = review({"operation": "CREATE", "object": document(spec)})
    assert not verdict.allowed
    assert f"spec.{role}.resources.{part}: '{name}' is a device" in verdict.message
    assert "accelerator" in verdict.message


def document(spec):
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "r"},
        "spec": spec,
    }
