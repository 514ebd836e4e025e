"""An endpoint without servers: somebody has its requests at every moment, and a server comes when an autoscaler wants one."""

import random
import re

import pytest
from endpoint_world import OTHER, World

from rollout_api.serving import HOLD_VARIABLE, HoldOrder

KEDA = {"maxReplicas": 4, "minReplicas": 0, "keda": {"serverAddress": "http://prometheus:9090"}}
HOLDER, AWAKE = "chat-holder", "chat-awake"
STEPS = 60


def servers(world):
    return {name: one for name, one in world.deployments().items() if name != HOLDER}


def numbers(world):
    return [one["spec"]["replicas"] for one in servers(world).values()]


async def settle(world, times=4):
    for _ in range(times):
        await world.look()
        world.come_up()
    await world.look(2)


async def sleeping():
    world = World(scaling=KEDA)
    await settle(world)
    world.edit(replicas=0)
    await settle(world)
    return world


async def test_it_begins_awake_with_a_holder_beside_it():
    world = World(scaling=KEDA)
    await settle(world)
    assert numbers(world) == [1] and world.selected() in servers(world)
    pod = world.deployments()[HOLDER]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert "limits" not in container["resources"], "no devices"
    spec = world.objects["ScaledObject", "chat-server"]["spec"]
    assert (spec["minReplicaCount"], spec["cooldownPeriod"]) == (0, 300)
    [pods] = re.findall(r'pod=~"(.*)"', spec["triggers"][0]["metadata"]["query"])
    assert re.fullmatch(pods, "chat-holder-7d9f8b6c5-x2k4q")
    assert re.fullmatch(pods, "chat-0123456789-7d9f8b6c5-x2k4q")
    assert not re.fullmatch(pods, "chat-holder-0123456789-7d9f8b6c5-x2k4q")


async def test_the_address_is_the_holders_before_the_last_server_goes_and_again_the_servers_when_one_is_ready():
    world = World(scaling=KEDA)
    await settle(world)
    [name] = servers(world)
    world.edit(replicas=0)
    await world.look()
    assert world.selected() == HOLDER and numbers(world) == [1]
    await settle(world)
    assert numbers(world) == [0] and world.condition("Ready") == ("True", "ScaledToZero")
    assert world.objects["Service", AWAKE]["spec"]["selector"]["rollout.dev/revision"] == name
    world.edit(replicas=1)
    await world.look(2)
    assert world.selected() == HOLDER and numbers(world) == [1], "it comes up"
    assert world.condition("Ready") == ("False", "NoServerReady")
    world.come_up()
    await world.look(2)
    assert world.selected() == name and world.condition("Ready") == ("True", "Serving")


async def test_no_server_goes_while_nobody_could_hold_requests():
    world = World(scaling=KEDA)
    await world.look()
    world.come_up(*servers(world))
    await world.look()
    world.edit(replicas=0)
    await world.look(3)
    assert numbers(world) == [1] and world.selected() != HOLDER
    world.come_up()
    await settle(world)
    assert numbers(world) == [0]


async def test_servers_that_are_about_to_go_get_no_requests_though_their_deployment_says_that_they_are_ready():
    """Its status follows its number: what a seed of the stories below came to, told by itself."""
    world = World(scaling=KEDA)
    await settle(world)
    [before] = servers(world)
    world.edit(replicas=0)
    await world.look(3)
    assert numbers(world) == [0] and world.deployments()[before]["status"]["readyReplicas"] == 1
    world.edit(model=OTHER, replicas=1)
    await world.look()
    assert world.selected() == HOLDER
    await settle(world, 6)
    [after] = servers(world)
    assert after != before and world.selected() == after


async def test_another_model_wakes_it_is_taken_over_and_sleeps_again():
    world = await sleeping()
    [before] = servers(world)
    world.edit(model=OTHER)
    await world.look()
    assert len(servers(world)) == 2 and max(numbers(world)) == 1
    await settle(world, 6)
    [after] = servers(world)
    assert after != before and numbers(world) == [0] and world.selected() == HOLDER


@pytest.mark.parametrize("scaling", [None, {**KEDA, "minReplicas": 1}])
async def test_with_servers_for_good_the_holder_goes_when_one_is_ready(scaling):
    world = await sleeping()
    world.edit(scaling=scaling, replicas=1)
    await world.look(2)
    assert world.selected() == HOLDER
    await settle(world)
    assert world.selected() in servers(world) and numbers(world) == [1]
    assert HOLDER not in world.deployments() and ("Service", AWAKE) not in world.objects


async def test_a_suspended_endpoint_holds_nothing_and_wakes():
    world = await sleeping()
    world.edit(suspend=True)
    await settle(world)
    assert world.deployments() == {}
    world.edit(suspend=False, replicas=1)
    await settle(world)
    assert numbers(world) == [1] and world.selected() in servers(world)


async def test_a_spec_that_is_broken_while_it_sleeps_changes_nothing_and_is_named():
    world = await sleeping()
    before = {name: one["spec"]["replicas"] for name, one in world.deployments().items()}
    world.edit(scaling={**KEDA, "minReplicas": "many"})
    await settle(world)
    assert {name: one["spec"]["replicas"] for name, one in world.deployments().items()} == before
    assert world.selected() == HOLDER and world.condition("Ready") == ("False", "InvalidSpec")
    world.edit(scaling=KEDA)
    await settle(world)
    assert world.condition("Ready") == ("True", "ScaledToZero")


@pytest.mark.parametrize(
    "refused",
    [{"tls": {"secretRef": {"name": "t"}}}, {"scaling": {**KEDA, "keda": None, "hpa": {}}}],
)
async def test_what_cannot_sleep_says_so_and_has_no_holder(refused):
    world = World(**{"scaling": KEDA, **refused})
    await settle(world)
    assert world.condition("Ready") == ("False", "InvalidSpec")
    assert "spec.scaling.minReplicas" in world.said("Ready") and world.deployments() == {}


async def test_the_holder_is_told_names_of_keys_and_where_servers_answer_and_gets_no_model():
    world = World(
        scaling=KEDA,
        modelName="adder",
        engine={"vllm": {}},
        apiKeys=[{"name": "ann", "secretKeyRef": {"name": "chat-keys", "key": "ann"}}],
        accelerator={"className": "gpu", "count": 1},
        runtime={"acceleratorClasses": [{"name": "gpu", "memory": "80Gi"}]},
    )
    world.secrets = {"chat-keys"}
    await settle(world)
    pod = world.deployments()[HOLDER]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [order] = [one["value"] for one in container["env"] if one["name"] == HOLD_VARIABLE]
    told = HoldOrder.model_validate_json(order)
    assert (told.name, told.keys) == ("adder", ("ann",))
    assert told.servers == "http://chat-awake.ns.svc:80"
    assert "gpu" not in str(container["resources"]) and "nodeSelector" not in pod
    assert not pod["automountServiceAccountToken"] and "initContainers" not in pod
    assert "tiny-adder" not in str(pod), "it loads no model"


class Story:
    """A person, an autoscaler, pods that come up or fall, and an operator that may die at any write."""

    def __init__(self, seed):
        self.draw, self.told = random.Random(seed), []
        self.world = World(scaling=KEDA)

    async def go_on(self):
        what = self.draw.choice(
            ["look"] * 8 + ["scale", "scale", "up", "up", "fall", "model", "low", "broken"]
        )
        self.told.append(what)
        world = self.world
        if what == "scale":
            world.edit(replicas=self.draw.choice([0, 0, 1, 3]))
        elif what == "up":
            world.come_up()
        elif what == "fall" and world.deployments():
            world.come_up(self.draw.choice(sorted(world.deployments())), ready=0)
        elif what == "model":
            world.edit(model=self.draw.choice([OTHER, {"uri": "rollout://tiny-adder"}]))
        elif what in ("low", "broken"):
            low = self.draw.choice([0, 0, 1]) if what == "low" else "many"
            world.edit(scaling={**KEDA, "minReplicas": low})
        else:
            await self.look()

    async def look(self):
        if await self.world.look_killed(self.draw.choice([0, 0, 1, 2, 3])):
            self.told.append("killed")

    def check(self):
        """The address is of pods that there are to be: of the holder, or of a revision that has servers."""
        world = self.world
        if ("Service", "chat-server") not in world.objects:
            return
        chosen = world.deployments().get(world.selected())
        assert chosen is not None and chosen["spec"]["replicas"] > 0, self.told


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(8), id="few"),
        pytest.param(range(8, 80), id="many", marks=pytest.mark.slow),
    ],
)
async def test_whatever_happens_somebody_has_the_requests(seeds):
    for seed in seeds:
        story = Story(seed)
        for _ in range(STEPS):
            await story.go_on()
            story.check()
        world = story.world
        for wanted in (0, 2):
            world.edit(scaling=KEDA, replicas=wanted)
            await settle(world, 8)
            assert numbers(world) == [wanted], (seed, story.told)
            assert (world.selected() == HOLDER) is (wanted == 0), (seed, story.told)
            before = world.writes
            await world.look(2)
            assert world.writes == before, (seed, story.told)
