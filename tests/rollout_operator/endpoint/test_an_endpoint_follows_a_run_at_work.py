"""``snapshot: Live``: servers are told what a run saves while it is at work, by digest and in that run's place; nothing restarts."""

import json
from typing import Any

import pytest
from endpoint_world import World

from rollout_api.serving import VARIABLE, LiveVersion, ServeOrder

RUNTIME = {"storage": {"uri": "s3://runs/team", "endpoint": "http://s3:9", "region": "here"}}
LIVE = {"fromRun": {"name": "grpo", "snapshot": "Live"}}
BASE = {"uri": "rollout://tiny-adder?steps=0", "chatTemplate": "chatml"}
AT_WORK = {"type": "Ready", "status": "True", "reason": "Running", "message": "step 4"}


def digest_of(step: int) -> str:
    return f"{step:02x}" * 32


def save(
    world: World, step: int, *, root: str = "s3://runs/team", digest: str = "", **conditions: Any
) -> None:
    """The run, which is there already, has saved a step; ``conditions``: what its status says besides."""
    live = world.runs["grpo"]
    place = f"{root}/ns/{live['metadata']['uid']}"
    name = digest_of(step)
    saved = {
        "name": f"step-{step:06d}",
        "step": step,
        "weightsURI": f"{place}/blake3/{name[:2]}/{name}",
        "weightsDigest": digest or f"blake3:{digest_of(step + 1)}",
    }
    said = [conditions or AT_WORK]
    live["status"] = {"conditions": said, "lastSnapshot": saved}


def begin(world: World, **model: Any) -> str:
    uid = world.run("grpo", conditions=[AT_WORK])
    world.runs["grpo"]["spec"] = {"model": model or BASE}
    return uid


def order(world: World, name: str) -> ServeOrder:
    [server] = world.deployments()[name]["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value") for one in server["env"]}
    return ServeOrder.model_validate_json(env[VARIABLE].replace("$$", "$"))


def told(world: World) -> LiveVersion:
    return LiveVersion.model_validate_json(
        world.objects["ConfigMap", "chat-live"]["data"]["live.json"]
    )


@pytest.fixture
async def followed():
    world = World(runtime=RUNTIME, model=LIVE)
    begin(world)
    save(world, 4)
    await world.look(2)
    world.come_up()
    await world.look(2)
    return world


async def test_a_run_that_has_saved_nothing_is_waited_for_and_nothing_is_made():
    world = World(runtime=RUNTIME, model=LIVE)
    begin(world)
    await world.look()
    assert world.objects == {}
    assert world.condition("Progressing") == ("False", "WaitingForRun")
    assert world.condition("Stalled") == ("", ""), "it needs nobody"
    assert world.again is not None, "what a run saves wakes no endpoint"


async def test_servers_are_told_the_place_once_and_the_version_in_a_file(followed):
    [name] = followed.deployments()
    uid = followed.runs["grpo"]["metadata"]["uid"]
    found = order(followed, name)
    assert found.live is not None
    assert (found.live.place, found.live.run) == (f"s3://runs/team/ns/{uid}", uid)
    assert (found.uri, found.live.chat_template) == (BASE["uri"], "chatml")
    assert found.storage is not None
    assert (found.storage.uri, found.storage.endpoint) == (None, "http://s3:9")
    version = told(followed)
    assert (version.run, version.step) == (uid, 4)
    assert version.object == f"blake3:{digest_of(4)}"
    assert version.digest == f"blake3:{digest_of(5)}"
    pod = followed.deployments()[name]["spec"]["template"]["spec"]
    [volume] = [one for one in pod["volumes"] if one["name"] == "live"]
    assert volume["configMap"] == {"name": "chat-live"}
    assert followed.condition("Following") == ("True", "Running")
    assert followed.condition("Ready") == ("True", "Serving")


async def test_what_the_run_saves_next_changes_the_file_and_no_pod(followed):
    [name] = followed.deployments()
    before = followed.deployments()[name]["metadata"]["resourceVersion"]
    save(followed, 8)
    await followed.look(2)
    assert told(followed).step == 8
    assert "step 8 (blake3:" in followed.said("Following")
    assert followed.deployments()[name]["metadata"]["resourceVersion"] == before
    assert len(followed.status["revisions"]) == 1
    writes = followed.writes
    await followed.look(3)
    assert followed.writes == writes, "nothing new, nothing written"


async def test_it_looks_again_by_itself(followed):
    assert followed.again is not None
    assert followed.again <= 10


async def test_a_file_that_somebody_changed_is_put_right(followed):
    live = followed.objects["ConfigMap", "chat-live"]
    live["data"] = {"live.json": "{}"}
    live["metadata"]["managedFields"] = []
    followed._touch(live)
    await followed.look(2)
    assert told(followed).step == 4


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        (
            {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "m"},
            "Succeeded",
        ),
        ({"type": "Finished", "status": "True", "reason": "Failed", "message": "m"}, "Failed"),
        (
            {"type": "Suspended", "status": "True", "reason": "Suspended", "message": "m"},
            "Suspended",
        ),
        (
            {
                "type": "Ready",
                "status": "False",
                "reason": "CoordinatorUnreachable",
                "message": "m",
            },
            "CoordinatorUnreachable",
        ),
    ],
)
async def test_a_run_that_saves_no_more_is_told_and_its_last_version_goes_on(
    followed, condition, reason
):
    save(followed, 8, **condition)
    await followed.look(2)
    assert told(followed).step == 8
    assert followed.condition("Following") == ("False", reason)
    assert "servers keep the version" in followed.said("Following")
    assert followed.condition("Ready") == ("True", "Serving")


async def test_a_run_that_is_deleted_takes_nothing_away_and_new_servers_are_told_the_last(followed):
    [name] = followed.deployments()
    del followed.runs["grpo"]
    followed.edit(replicas=3)
    await followed.look(2)
    assert followed.condition("Following") == ("False", "RunGone")
    assert followed.condition("Available") == ("True", "Serving")
    assert followed.condition("Ready") == ("False", "ReferenceNotFound")
    assert followed.deployments()[name]["spec"]["replicas"] == 3
    assert told(followed).step == 4
    writes = followed.writes
    await followed.look(2)
    assert followed.writes == writes


async def test_another_run_of_the_name_is_another_revision(followed):
    [old] = followed.deployments()
    uid = begin(followed)
    save(followed, 2)
    await followed.look(2)
    [new] = followed.deployments().keys() - {old}
    assert followed.selected() == old
    assert order(followed, new).live.run == told(followed).run == uid
    assert order(followed, old).live.run != uid, "servers of the old one take nothing of it"
    followed.come_up(new)
    await followed.look(3)
    assert (followed.selected(), list(followed.deployments())) == (new, [new])


async def test_an_endpoint_that_follows_no_more_keeps_the_file_until_nobody_mounts_it(followed):
    [old] = followed.deployments()
    followed.edit(model={"uri": "rollout://tiny-adder"})
    await followed.look(2)
    assert ("ConfigMap", "chat-live") in followed.objects
    followed.come_up()
    await followed.look(4)
    assert old not in followed.deployments()
    assert ("ConfigMap", "chat-live") not in followed.objects
    assert followed.condition("Following") == ("", "")


async def test_a_revision_that_is_gone_back_to_follows_again(followed):
    [old] = followed.deployments()
    followed.edit(model={"uri": "rollout://tiny-adder"})
    await followed.look(2)
    followed.come_up()
    await followed.look(3)
    save(followed, 12)
    followed.edit(rollbackTo=old)
    await followed.look(2)
    assert old in followed.deployments()
    assert told(followed).step == 12


@pytest.mark.parametrize(
    "root", ["s3://others/team", "s3://runs/team/../..", "s3://runs/team/other-namespace"]
)
async def test_what_is_not_the_runs_own_place_is_never_served(root):
    world = World(runtime=RUNTIME, model=LIVE)
    begin(world)
    save(world, 4, root=root)
    await world.look()
    assert world.objects == {}
    assert world.condition("Stalled") == ("True", "NotAllowed")


async def test_the_place_of_another_run_is_never_served():
    world = World(runtime=RUNTIME, model=LIVE)
    begin(world)
    save(world, 4)
    theirs = world.runs["grpo"]["status"]
    begin(world)
    world.runs["grpo"]["status"] = theirs
    await world.look()
    assert world.objects == {}
    assert world.condition("Stalled") == ("True", "NotAllowed")


@pytest.mark.parametrize("digest", ["", "sha256", "blake3:xyz", "blake3:" + "a" * 80])
async def test_a_status_that_names_no_digest_is_not_served(digest):
    world = World(runtime=RUNTIME, model=LIVE)
    begin(world)
    save(world, 4)
    world.runs["grpo"]["status"]["lastSnapshot"]["weightsDigest"] = digest
    await world.look()
    assert world.objects == {}
    assert world.condition("Stalled") == ("True", "ReferenceNotFound")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"fromRun": {"name": "first"}}, "serve Latest or Best"),
        ({"uri": "hf://Qwen/Qwen2.5-0.5B-Instruct"}, "spec.model.revision"),
        ({"uri": "s3://bucket/model"}, "a model at s3://"),
    ],
)
async def test_a_run_whose_first_model_servers_cannot_find_is_refused_by_name(model, words):
    world = World(runtime=RUNTIME, model=LIVE)
    begin(world, **model)
    save(world, 4)
    await world.look()
    assert world.condition("Stalled") == ("True", "NotSupported")
    assert words in world.said("Stalled")


async def test_a_run_that_saves_nothing_for_servers_is_refused_by_name():
    world = World(runtime=RUNTIME, model=LIVE)
    begin(world)
    world.runs["grpo"]["status"]["lastSnapshot"] = {"name": "step-000004", "step": 4}
    await world.look()
    assert world.condition("Stalled") == ("True", "NotSupported")
    assert "storage.uri" in world.said("Stalled")


async def test_no_credential_and_no_way_to_the_run_is_given(followed):
    kinds = {kind for kind, _ in followed.objects}
    assert kinds == {
        *("ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget"),
        *("Service", "ServiceAccount"),
    }
    [server] = [one["spec"]["template"]["spec"] for one in followed.deployments().values()]
    assert server["automountServiceAccountToken"] is False
    assert not any("secret" in json.dumps(one) for one in server["volumes"])
    assert "coordinator" not in json.dumps(server)
    policy = followed.objects["NetworkPolicy", "chat-server"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
