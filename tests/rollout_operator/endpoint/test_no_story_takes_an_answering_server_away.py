"""Edits, runs that save, scalings, rollbacks, TLS begun and ended, late revisions, evaluations, servers that fail and operators that die, in any order.

What answers goes on until what replaces it answers, and the address is spoken to as it speaks; where a bar is set nothing answers that has not passed it.
"""

import json
import random

import pytest
from endpoint_world import World

from rollout_api import names

MODELS = ("tiny-adder", "tiny-qwen2", "tiny-llama", "tiny-agent")
STEPS = 40
GATE_EVENTS = ("good", "good", "bad", "mute")
RUNTIME = {"storage": {"uri": "s3://runs/team"}}
BARRED = {
    "suite": {"builtin": {"name": "arithmetic"}},
    "gate": {"metric": "accuracy", "lowerBound": "0.5", "action": "StopPromotion"},
}
TLS = {"secretRef": {"name": "chat-tls"}}
FOLLOWED = {"fromRun": {"name": "sft", "snapshot": "Best"}}
AT_WORK = {"fromRun": {"name": "sft", "snapshot": "Live"}}


class Story:
    """One endpoint and what a seed draws."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        model = self.draw.choice([{"uri": "rollout://tiny-adder"}, FOLLOWED, AT_WORK])
        self.gated = seed % 2 == 1
        promotion = {"evaluations": [BARRED]} if self.gated else {}
        self.world = World(replicas=2, runtime=RUNTIME, model=model, promotion=promotion)
        self.world.secrets.add("chat-tls")
        self.told = []
        self.passed = set()

    def become_of_run(self):
        """The run whose model may be served ends well, ends badly, is at work, or is gone."""
        what = self.draw.choice(["succeeds", "succeeds", "fails", "works", "saves", "goes"])
        self.told.append(what)
        if what == "succeeds":
            self.world.succeed("sft", self.draw.choice("abc") * 64)
        elif what == "goes":
            self.world.runs.clear()
        elif what == "saves":
            self.save()
        else:
            failed = [{"type": "Finished", "status": "True", "reason": "Failed"}]
            self.world.run("sft", conditions=failed if what == "fails" else [])

    def save(self):
        """The run is at work, and has saved another step."""
        self.world.succeed("sft", self.draw.choice("abc") * 64)
        [live] = self.world.runs.values()
        saved = {**live["status"]["lastSnapshot"], "step": self.draw.randint(1, 99)}
        live["status"] = {"conditions": [], "lastSnapshot": saved}

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
        before = self.answering()
        if await self.world.look_killed(self.draw.choice([0, 0, 0, 1, 2, 3])):
            self.told.append("killed")
        self.check(before)

    def check(self, before):
        """What has become of a look."""
        assert self.answering() or not before, (self.told, before)
        assert not self.gated or self.answering() in {"", *self.passed}, self.told
        mounts = [
            one for one in self.world.deployments().values() if '"chat-live"' in json.dumps(one)
        ]
        assert not mounts or ("ConfigMap", "chat-live") in self.world.objects, self.told
        if self.answering():
            assert self.port() == (443 if self.speaks_tls() else 80), self.told

    def port(self):
        """Where the address sends clients from."""
        [port] = self.world.objects["Service", names.server_name("chat")]["spec"]["ports"]
        return port["port"]

    def speaks_tls(self):
        """Whether the servers that answer do."""
        live = self.world.deployments()[self.answering()]
        [server] = live["spec"]["template"]["spec"]["containers"]
        return "inside" in {one["name"] for one in server["ports"]}

    def end_job(self, what):
        """Whoever asks the candidate is done, and its figures are above the bar, below it, or none."""
        candidate = self.world.objects.get(("Service", names.candidate_name("chat")))
        running = [job for job in self.world.jobs.values() if "status" not in job]
        if candidate is None or not running:
            return
        if what == "good":
            self.passed.add(candidate["spec"]["selector"][names.LABEL_REVISION])
            self.world.find((0.9, 0.6))
        elif what == "bad":
            self.world.find((0.9, 0.4))
        else:
            self.world.end_job("ModelNotFound: HTTP 503", failed=True)

    async def go_on(self):
        servers = list(self.world.deployments())
        what = self.draw.choice(
            ["look"] * 5
            + ["model", "run", "scale", "up", "up", "some", "late", "back", "tls", *GATE_EVENTS]
        )
        self.told.append(what)
        if what in GATE_EVENTS:
            self.end_job(what)
        elif what in ("up", "some", "late"):
            if servers:
                self.become_of_servers(what, self.draw.choice(servers))
        elif what in ("model", "scale", "back", "tls"):
            self.edit(what)
        elif what == "run":
            self.become_of_run()
        else:
            await self.look()

    def edit(self, what):
        """The endpoint's person changes their mind."""
        if what == "model":
            named = {"uri": f"rollout://{self.draw.choice(MODELS)}"}
            self.world.edit(model=self.draw.choice([named, FOLLOWED, AT_WORK]))
        elif what == "scale":
            self.world.edit(replicas=self.draw.randint(1, 3))
        elif what == "tls":
            self.world.edit(tls=self.draw.choice([None, TLS]))
        else:
            self.go_back()

    def go_back(self):
        """To a revision that may serve, to one that never was, or on to what the spec says."""
        known = [one["name"] for one in self.world.status.get("revisions", ())]
        may = [one for one in known if not self.gated or one in self.passed]
        self.world.edit(rollbackTo=self.draw.choice([None, None, "chat-0000000000", *may]))

    def become_of_servers(self, what, name):
        """Of one revision: all come up, one does, or none in time."""
        if what != "late":
            self.world.come_up(name, ready=1 if what == "some" else None)
        elif name != self.answering():
            self.world.be_late(name)


@pytest.mark.parametrize("first", range(0, 200, 20))
async def test_what_answers_goes_on_and_what_is_wanted_comes(first):
    for seed in range(first, first + 20):
        story = Story(seed)
        for _ in range(STEPS):
            await story.go_on()
        world = story.world
        world.succeed("sft", "d" * 64)
        world.edit(promotion={}, rollbackTo=None)
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
