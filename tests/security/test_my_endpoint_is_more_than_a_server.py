"""An editor of one namespace makes an endpoint, to have the operator give them what they may not have: others' objects, secrets, nodes, devices."""

from copy import deepcopy

import pytest
from endpoint_world import UID, World

from rollout_api import names
from rollout_operator.kube.resources import DEPLOYMENTS, SERVICES
from rollout_operator.run.index.store import RunStore

KEYS = [{"name": "ann", "secretKeyRef": {"name": "keys", "key": "ann"}}]


@pytest.mark.parametrize(
    "spec",
    [
        {"annotations": {"cloud.example/identity": "admin"}},
        {"labels": {"app": "bank"}},
        {"tolerations": [{"operator": "Exists"}]},
        {"priorityClassName": "system-node-critical"},
        {"engine": {"vllm": {"image": "evil.example/vllm:1"}}},
    ],
)
async def test_what_the_runtime_does_not_name_is_not_given(spec):
    world = World(**spec)
    await world.look()
    assert world.condition("Stalled") == ("True", "NotAllowed")
    assert world.objects == {}


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"vllm": {"extraArguments": [{"name": "middleware", "value": "my.Code"}]}}},
        {"engine": {"vllm": {"extraArguments": [{"name": "host", "value": "0.0.0.0"}]}}},
        {"env": [{"name": "LD_PRELOAD", "value": "/mine.so"}]},
        {"resources": {"limits": {"nvidia.com/gpu": "8"}}},
        {"apiKeys": [{"name": "a", "secretKeyRef": {"name": "k", "key": "a", "namespace": "x"}}]},
        {"model": {"snapshotRef": {"name": "theirs", "namespace": "victim"}}},
        {"model": {"uri": "s3://victim/models"}},
        {"hostNetwork": True},
        {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]},
        {"serviceAccountName": "admin"},
    ],
)
async def test_a_spec_that_was_stored_without_the_webhook_is_held_to_its_rules(spec):
    world = World(**spec)
    await world.look()
    assert world.condition("Stalled") == ("True", "InvalidSpec")
    assert world.objects == {}


async def test_a_runtime_that_does_not_serve_my_namespace_makes_me_nothing():
    world = World(runtime={"allowedNamespaces": {"from": "Names", "names": ["theirs"]}})
    await world.look()
    assert world.condition("Stalled") == ("True", "NotAllowed")
    assert world.objects == {}


async def test_scaling_does_not_pass_the_ceiling():
    world = World(runtime={"ceilings": {"actorReplicas": 2}}, replicas=2)
    await world.look()
    world.edit(replicas=4000)
    await world.look()
    [found] = world.deployments().values()
    assert found["spec"]["replicas"] == 2
    assert world.condition("Stalled") == ("True", "CeilingExceeded")


@pytest.mark.parametrize("kind", ["Service", "ServiceAccount", "Deployment"])
async def test_an_object_of_mine_under_the_operators_name_is_not_taken_over(kind):
    once = World()
    await once.look()
    [name] = [name for found, name in once.objects if found == kind]
    mine = deepcopy(once.objects[kind, name])
    mine["metadata"] |= {"ownerReferences": [], "labels": {}}
    world = World()
    world.objects[kind, name] = deepcopy(mine)
    await world.look()
    assert world.condition("Stalled") == ("True", "FieldConflict")
    assert f"{kind} {name} exists and is not this RolloutEndpoint's" in world.said("Stalled")
    assert world.objects[kind, name] == mine


async def test_only_my_own_namespace_is_asked_for_the_secrets_that_i_name():
    world, asked = World(apiKeys=KEYS), []
    get = world.get

    async def noted(resource, namespace, name, **options):
        asked.append((resource.kind, namespace, name))
        assert options == {"metadata_only": True}, "what a Secret holds is not read"
        return await get(resource, namespace, name, **options)

    world.get = noted
    await world.look()
    assert asked == [("Secret", "ns", "keys")]


def child(kind, namespace, owner_kind="RolloutEndpoint"):
    owner = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": owner_kind,
        "name": "chat",
        "uid": UID,
        "controller": True,
    }
    labels = {names.LABEL_ENDPOINT: "chat", names.LABEL_RUN: "chat"}
    meta = {
        "name": "chat-0123456789",
        "namespace": namespace,
        "uid": "u",
        "resourceVersion": "5",
        "labels": labels,
        "ownerReferences": [owner],
    }
    return {"kind": kind, "metadata": meta, "spec": {"replicas": 1, "selector": {}}}


def test_an_object_of_another_namespace_or_of_a_namesake_kind_is_no_child_of_theirs():
    store = RunStore()
    store.put(DEPLOYMENTS, child("Deployment", "mine"))
    assert store.children("theirs", UID) == {}
    assert len(store.children("mine", UID)) == 1
    store.put(SERVICES, child("Service", "theirs", owner_kind="Deployment"))
    assert store.children("theirs", UID) == {}


async def test_words_of_mine_are_cut_and_shown_and_end_no_operator():
    world = World()
    await world.look()
    [live] = world.deployments().values()
    live["metadata"]["annotations"][names.ANNOTATION_FAILED] = "\x1b[2J" + "x" * 200_000
    world._touch(live)
    world.status = {"conditions": [], "revisions": [], "unknown": {"a": 1}}
    await world.look(2)
    assert len(world.said("Progressing")) <= 4096
