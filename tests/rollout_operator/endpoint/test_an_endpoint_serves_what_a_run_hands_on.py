"""``model.fromRun``: the model that a run has handed on is served by its digest; what becomes of the run moves nothing else."""

import json

import pytest
from endpoint_world import KEY, World

from rollout_api.serving import VARIABLE, ServeOrder
from rollout_operator.run.index.store import RunStore

FIRST, SECOND = "ab" * 32, "cd" * 32
RUNTIME = {"storage": {"uri": "s3://runs/team", "endpoint": "http://s3:9", "region": "here"}}
BEST = {"fromRun": {"name": "sft", "snapshot": "Best"}}


def order(world, name):
    [server] = world.deployments()[name]["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value") for one in server["env"]}
    return ServeOrder.model_validate_json(env[VARIABLE])


@pytest.fixture
async def served():
    world = World(runtime=RUNTIME, model=BEST)
    world.succeed("sft", FIRST)
    await world.look(2)
    world.come_up()
    await world.look(2)
    return world


async def test_a_run_that_is_at_work_is_waited_for_and_nothing_is_made():
    world = World(runtime=RUNTIME, model=BEST)
    world.run("sft", best={"name": "step-000004", "step": 4})
    await world.look()
    assert world.objects == {}
    assert world.condition("Progressing") == ("False", "WaitingForRun")
    assert world.condition("Stalled") == ("", ""), "it needs nobody"


async def test_servers_are_told_the_object_by_its_digest_which_stands_in_the_status():
    world = World(runtime=RUNTIME, model=BEST)
    uri = world.succeed("sft", FIRST)
    await world.look(2)
    [name] = world.deployments()
    told = order(world, name)
    assert (told.uri, told.name) == (uri, "chat")
    assert told.storage is not None
    assert (told.storage.endpoint, told.storage.region) == ("http://s3:9", "here")
    [revision] = world.status["revisions"]
    assert (revision["modelURI"], revision["modelDigest"]) == (uri, f"blake3:{FIRST}")
    assert f"Best of run sft (blake3:{FIRST})" in world.events[0]["note"]


async def test_another_run_of_the_name_that_ends_with_another_model_is_a_promotion(served):
    [old] = served.deployments()
    served.run("sft")
    await served.look(2)
    assert list(served.deployments()) == [old], "until it has ended nothing moves"
    assert served.condition("Available") == ("True", "Serving")
    served.succeed("sft", SECOND)
    await served.look(2)
    [new] = served.deployments().keys() - {old}
    assert served.selected() == old
    served.come_up(new)
    await served.look(3)
    assert (served.selected(), list(served.deployments())) == (new, [new])
    digests = [one["modelDigest"] for one in served.status["revisions"]]
    assert digests == [f"blake3:{SECOND}", f"blake3:{FIRST}"]


async def test_a_run_that_goes_is_named_and_what_serves_goes_on_and_is_scaled(served):
    [name] = served.deployments()
    del served.runs["sft"]
    served.edit(replicas=3)
    await served.look(2)
    assert served.selected() == name
    assert served.deployments()[name]["spec"]["replicas"] == 3
    assert served.condition("Available") == ("True", "Serving")
    assert served.condition("Ready") == ("False", "ReferenceNotFound")
    assert "fromRun sft" in served.said("Ready")
    before = served.writes
    await served.look(2)
    assert served.writes == before


async def test_a_run_that_has_failed_takes_nothing_away(served):
    failed = {"type": "Finished", "status": "True", "reason": "Failed"}
    served.run("sft", conditions=[failed])
    await served.look(2)
    assert served.condition("Available") == ("True", "Serving")
    assert served.condition("Stalled") == ("True", "WaitingForRun")


@pytest.mark.parametrize(
    ("root", "runtime", "reason"),
    [
        ("s3://others/team", RUNTIME, "NotAllowed"),
        ("s3://runs/team/../..", RUNTIME, "NotAllowed"),
        ("s3://runs/team", {}, "NotAllowed"),
    ],
)
async def test_what_is_not_the_runs_own_place_is_never_served(root, runtime, reason):
    world = World(runtime=runtime, model=BEST)
    world.succeed("sft", FIRST, root=root)
    await world.look()
    assert world.objects == {}
    assert world.condition("Stalled") == ("True", reason)


async def test_the_place_of_another_run_is_never_served():
    world = World(runtime=RUNTIME, model=BEST)
    theirs = world.succeed("other", FIRST)
    world.succeed("sft", SECOND)
    world.runs["sft"]["status"]["best"]["modelURI"] = theirs
    await world.look()
    assert world.condition("Stalled") == ("True", "NotAllowed")


async def test_a_model_on_the_volume_of_its_run_is_refused_by_name():
    world = World(runtime=RUNTIME, model=BEST)
    world.succeed("sft", FIRST)
    uid = world.runs["sft"]["metadata"]["uid"]
    claim = f"pvc://ledger-{uid[:8]}-sft-coordinator-0/objects/blake3/ab/{FIRST}"
    world.runs["sft"]["status"]["best"]["modelURI"] = claim
    await world.look()
    assert world.condition("Stalled") == ("True", "NotSupported")
    assert "storage.uri" in world.said("Stalled")


async def test_an_endpoint_may_have_the_name_of_its_run():
    world = World(runtime=RUNTIME, model={"fromRun": {"name": "chat"}})
    world.run("chat")
    await world.look()
    assert world.condition("Progressing") == ("False", "WaitingForRun")


async def test_an_endpoint_is_woken_when_its_run_ends():
    woken = []
    store, world = RunStore(woken.append), World(model=BEST)
    store.put_object("RolloutEndpoint", world._endpoint())
    world.run("sft")
    store.put_object("RolloutRun", world.runs["sft"])
    assert KEY in woken
    woken.clear()
    live = json.loads(json.dumps(world.runs["sft"]))
    live["metadata"]["resourceVersion"] = "2"
    live["status"] = {"conditions": [{"type": "Finished", "status": "True", "reason": "Succeeded"}]}
    store.put_object("RolloutRun", live)
    assert KEY in woken
