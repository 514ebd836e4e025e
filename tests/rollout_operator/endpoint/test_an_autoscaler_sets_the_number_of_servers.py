"""An endpoint with an autoscaler: it writes the number of servers, the operator follows, and neither takes back what the other did."""

import random
import re

import pytest
from endpoint_world import KEY, OTHER, UID, World

from rollout_api.conditions import Reason

HPA = {"maxReplicas": 4, "hpa": {}}
KEDA = {"maxReplicas": 4, "keda": {"serverAddress": "http://prometheus:9090"}}
PLACE = ("HorizontalPodAutoscaler", "chat-server")
SCALED_OBJECT = ("ScaledObject", "chat-server")
ENDPOINT = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutEndpoint", "name": "chat"}
BLIND = {
    "type": "ScalingActive",
    "status": "False",
    "reason": "FailedGetPodsMetric",
    "message": "no metrics\x1b[2J",
}
STEPS = 40


async def served(**spec):
    world = World(**spec)
    await settle(world)
    return world


async def settle(world):
    for _ in range(3):
        await world.look()
        world.come_up()
    await world.look(2)


def numbers(world):
    return [one["spec"]["replicas"] for one in world.deployments().values()]


def say(world, place, *conditions):
    """What an autoscaler says of itself."""
    live = world.objects[place]
    live["status"] = {"conditions": list(conditions)}
    world._touch(live)


async def test_an_hpa_scales_the_endpoint_by_the_metric_of_its_pods():
    world = await served(
        scaling={**HPA, "minReplicas": 2, "targetSaturation": "0.75", "scaleDownSeconds": 60}
    )
    found = world.objects[PLACE]
    assert found["metadata"]["ownerReferences"][0]["uid"] == UID
    spec = found["spec"]
    assert spec["scaleTargetRef"] == ENDPOINT
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 4)
    [metric] = spec["metrics"]
    assert metric["pods"]["metric"]["name"] == "rollout_endpoint_saturation_ratio"
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "750m"}
    assert spec["behavior"]["scaleDown"] == {"stabilizationWindowSeconds": 60}
    assert numbers(world) == [2], "it begins with the fewest"
    assert world.condition("Scaled") == ("True", "Autoscaled")


async def test_keda_asks_the_prometheus_that_is_named_for_the_servers_of_this_endpoint():
    keda = {**KEDA["keda"], "authenticationRef": {"name": "monitor"}, "pollingSeconds": 5}
    world = await served(scaling={**KEDA, "keda": keda})
    spec = world.objects[SCALED_OBJECT]["spec"]
    assert spec["scaleTargetRef"] == ENDPOINT
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], spec["pollingInterval"]) == (1, 4, 5)
    [trigger] = spec["triggers"]
    assert trigger["authenticationRef"] == {"name": "monitor"}
    asked = trigger["metadata"]
    assert asked["serverAddress"] == "http://prometheus:9090" and asked["threshold"] == "0.8"
    chosen = re.fullmatch(
        r'sum\(rollout_endpoint_saturation_ratio{namespace="ns", pod=~"(.*)"}\)', asked["query"]
    )
    assert re.fullmatch(chosen[1], "chat-0123456789-7d9f8b6c5-x2k4q")
    for others in ("chat-two-0123456789-7d9f8b6c5-x2k4q", "chat-0123456789-abcdefabcd-7d9f8-x2k4q"):
        assert not re.fullmatch(chosen[1], others)
    assert PLACE not in world.objects, "KEDA makes its own"


@pytest.mark.parametrize(
    ("asked", "quantity"), [("0.001", "1m"), ("0.0001", "1m"), ("1", "1"), ("12.5", "12500m")]
)
async def test_a_target_is_written_as_the_api_server_writes_it(asked, quantity):
    world = await served(scaling={**HPA, "targetSaturation": asked})
    [metric] = world.objects[PLACE]["spec"]["metrics"]
    assert metric["pods"]["target"]["averageValue"] == quantity


async def test_what_an_autoscaler_asks_for_is_done_and_neither_writes_over_the_other():
    world = await served(scaling=HPA)
    for wanted in (3, 4, 1, 2):
        world.edit(replicas=wanted)
        await settle(world)
        assert numbers(world) == [wanted]
        before = world.writes
        await world.look(3)
        assert world.writes == before


async def test_a_changed_model_comes_up_with_as_many_servers_as_there_are_by_now():
    world = await served(scaling=HPA)
    world.edit(replicas=3)
    await settle(world)
    world.edit(model=OTHER)
    await world.look(2)
    assert numbers(world) == [3, 3]
    world.edit(replicas=4)
    await world.look(2)
    assert numbers(world) == [4, 4], "scaled while it comes up: both"


@pytest.mark.parametrize(
    ("before", "bounds", "now"),
    [(4, {"maxReplicas": 2}, 2), (1, {"minReplicas": 3}, 3), (2, {"minReplicas": 1}, 2)],
)
async def test_other_bounds_hold_before_the_autoscaler_has_written(before, bounds, now):
    world = await served(scaling=HPA)
    world.edit(replicas=before)
    await settle(world)
    world.edit(scaling={**HPA, **bounds})
    await settle(world)
    assert numbers(world) == [now]


async def test_without_scaling_the_autoscaler_goes_and_its_last_number_stays():
    world = await served(scaling=HPA)
    world.edit(replicas=3)
    await settle(world)
    world.edit(scaling=None)
    await settle(world)
    assert PLACE not in world.objects
    assert numbers(world) == [3]
    assert world.condition("Scaled") == ("", "")


async def test_one_autoscaler_takes_the_place_of_the_other():
    world = await served(scaling=HPA)
    for scaling, there, gone in ((KEDA, SCALED_OBJECT, PLACE), (HPA, PLACE, SCALED_OBJECT)):
        world.edit(scaling=scaling)
        await settle(world)
        assert there in world.objects and gone not in world.objects


async def test_a_suspended_endpoint_has_no_autoscaler_and_gets_it_back():
    world = await served(scaling=HPA)
    world.edit(suspend=True)
    await settle(world)
    assert PLACE not in world.objects
    world.edit(suspend=False)
    await settle(world)
    assert PLACE in world.objects


async def test_what_keeps_an_autoscaler_from_its_metric_is_said_and_servers_stay():
    world = await served(scaling=HPA)
    say(world, PLACE, BLIND)
    await world.look()
    assert world.condition("Scaled") == ("False", "AutoscalerFailed")
    assert "FailedGetPodsMetric: no metrics\\x1b[2J" in world.said("Scaled")
    assert world.condition("Ready") == ("True", "Serving")
    say(world, PLACE, {**BLIND, "status": "True"})
    await world.look()
    assert world.condition("Scaled") == ("True", "Autoscaled")


async def test_a_cluster_without_keda_is_named_and_everything_else_goes_on():
    world = World(scaling=KEDA)
    world.served.clear()
    await settle(world)
    assert world.condition("Scaled") == ("False", Reason.KIND_NOT_SERVED)
    assert "keda.sh/v1alpha1" in world.said("Scaled")
    assert world.condition("Ready") == ("True", "Serving")
    before = world.writes
    await world.look(3)
    assert world.writes == before and world.again is None, "no loop"
    world.served.add("ScaledObject")
    await world.look()
    assert SCALED_OBJECT in world.objects


async def test_ceilings_hold_for_the_most_servers_there_may_be():
    world = World(runtime={"ceilings": {"actorReplicas": 3}}, scaling=HPA)
    await world.look()
    assert world.condition("Stalled") == ("True", "CeilingExceeded")
    assert "spec.scaling.maxReplicas: 4" in world.said("Stalled")


async def test_a_spec_that_cannot_be_read_takes_no_autoscaler_away():
    world = await served(scaling=HPA)
    world.edit(scaling={**HPA, "minReplicas": "many"})
    await world.look(2)
    assert world.condition("Stalled") == ("True", "InvalidSpec")
    assert PLACE in world.objects


async def test_a_revision_of_before_is_gone_back_to_with_the_autoscaler_of_now():
    world = await served(scaling=HPA)
    first = world.status["currentRevision"]
    world.edit(model=OTHER, scaling=KEDA)
    await settle(world)
    world.edit(rollbackTo=first)
    await settle(world)
    assert world.status["currentRevision"] == first
    assert SCALED_OBJECT in world.objects and PLACE not in world.objects


class Story:
    """A person, an autoscaler, a cluster whose kinds come and go, and an operator that may die at any write."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.world = World(scaling=HPA)
        self.told = []

    def bounds(self):
        low = self.draw.randint(1, 3)
        return {**self.draw.choice([HPA, KEDA]), "minReplicas": low, "maxReplicas": low + 2}

    async def go_on(self):
        what = self.draw.choice(["look"] * 6 + ["scale", "scale", "bounds", "none", "model", "up"])
        self.told.append(what)
        world = self.world
        if what == "scale":
            world.edit(replicas=self.draw.randint(1, 6))
        elif what == "bounds":
            world.edit(scaling=self.bounds())
        elif what == "none":
            world.edit(suspend=self.draw.random() < 0.5, scaling=self.draw.choice([None, HPA]))
        elif what == "model":
            world.edit(model=self.draw.choice([OTHER, {"uri": "rollout://tiny-adder"}]))
        elif what == "up":
            world.come_up()
        else:
            await self.look()

    async def look(self):
        if await self.world.look_killed(self.draw.choice([0, 0, 1, 2])):
            self.told.append("killed")


@pytest.mark.parametrize("first", range(0, 60, 20))
async def test_whatever_happens_there_is_the_autoscaler_that_is_wanted_and_its_number(first):
    for seed in range(first, first + 20):
        story = Story(seed)
        for _ in range(STEPS):
            await story.go_on()
        world = story.world
        world.edit(suspend=False, scaling=story.bounds())
        for _ in range(8):
            await world.look()
            world.come_up()
        await world.look(2)
        scaling = world.spec["scaling"]
        there = {one for one in world.objects if one in (PLACE, SCALED_OBJECT)}
        assert there == {SCALED_OBJECT if "keda" in scaling else PLACE}, (seed, story.told)
        wanted = max(world.spec.get("replicas", 0), scaling["minReplicas"])
        assert numbers(world) == [min(wanted, scaling["maxReplicas"])], (seed, story.told)
        before = world.writes
        await world.look(2)
        assert world.writes == before, (seed, story.told, KEY)
