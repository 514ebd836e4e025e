"""Edits, scalings, late revisions, servers that fail and operators that die, in any order: what answers goes on until what replaces it answers."""

import random

import pytest
from endpoint_world import World

from rollout_api import names

MODELS = ("tiny-adder", "tiny-qwen2", "tiny-llama", "tiny-agent")
STEPS = 40
RUNTIME = {"storage": {"uri": "s3://runs/team"}}
FOLLOWED = {"fromRun": {"name": "sft", "snapshot": "Best"}}


class Story:
    """One endpoint and what a seed draws."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        model = self.draw.choice([{"uri": "rollout://tiny-adder"}, FOLLOWED])
        self.world = World(replicas=2, runtime=RUNTIME, model=model)
        self.told = []

    def become_of_run(self):
        """The run whose model may be served ends well, ends badly, is at work, or is gone."""
        what = self.draw.choice(["succeeds", "succeeds", "fails", "works", "goes"])
        self.told.append(what)
        if what == "succeeds":
            self.world.succeed("sft", self.draw.choice("abc") * 64)
        elif what == "goes":
            self.world.runs.clear()
        else:
            failed = [{"type": "Finished", "status": "True", "reason": "Failed"}]
            self.world.run("sft", conditions=failed if what == "fails" else [])

    def answering(self):
        """The revision at the address, where a server of it is ready; empty where none is."""
        try:
            name = self.world.selected()
        except KeyError:
            return ""
        live = self.world.deployments().get(name)
        return name if live and live.get("status", {}).get("readyReplicas") else ""

    async def look(self):
        """An operator that may die at one of its writes; the server that answered still does."""
        before, dies_at = self.answering(), self.draw.choice([0, 0, 0, 1, 2, 3])
        store, merge, delete = self.world._store, self.world.merge, self.world.delete
        left = [dies_at]

        def count():
            left[0] -= 1
            if left[0] == 0:
                raise SystemError("killed")

        def stored(*arguments):
            count()
            return store(*arguments)

        async def merged(*arguments, **named):
            count()
            return await merge(*arguments, **named)

        async def deleted(*arguments, **named):
            count()
            await delete(*arguments, **named)

        self.world._store, self.world.merge, self.world.delete = stored, merged, deleted
        try:
            await self.world.look()
        except SystemError:
            self.told.append("killed")
        finally:
            self.world._store, self.world.merge, self.world.delete = store, merge, delete
        if before:
            assert self.answering(), (self.told, before)

    async def go_on(self):
        servers = list(self.world.deployments())
        what = self.draw.choice(
            ["look"] * 5 + ["model", "run", "scale", "up", "up", "some", "late"]
        )
        self.told.append(what)
        if what == "model":
            named = {"uri": f"rollout://{self.draw.choice(MODELS)}"}
            self.world.edit(model=self.draw.choice([named, FOLLOWED]))
        elif what == "run":
            self.become_of_run()
        elif what == "scale":
            self.world.edit(replicas=self.draw.randint(1, 3))
        elif what == "up" and servers:
            self.world.come_up(self.draw.choice(servers))
        elif what == "some" and servers:
            self.world.come_up(self.draw.choice(servers), ready=1)
        elif what == "late" and servers:
            name = self.draw.choice(servers)
            if name != self.answering():
                self.world.be_late(name)
        else:
            await self.look()


@pytest.mark.parametrize("first", range(0, 200, 20))
async def test_what_answers_goes_on_and_what_is_wanted_comes(first):
    for seed in range(first, first + 20):
        story = Story(seed)
        for _ in range(STEPS):
            await story.go_on()
        world = story.world
        world.succeed("sft", "d" * 64)
        await world.look()
        world.come_up()
        for name, live in list(world.deployments().items()):
            if live["metadata"]["annotations"].get(names.ANNOTATION_FAILED):
                del world.objects["Deployment", name]
        for _ in range(6):
            await world.look()
            world.come_up()
        await world.look(2)
        [name] = world.deployments()
        assert (world.selected(), world.condition("Ready")) == (name, ("True", "Serving")), seed
        assert world.status["currentRevision"] == name
        assert world.deployments()[name]["spec"]["replicas"] == world.spec["replicas"]
        before = world.writes
        await world.look()
        assert world.writes == before, "what is as it should be is left alone"
