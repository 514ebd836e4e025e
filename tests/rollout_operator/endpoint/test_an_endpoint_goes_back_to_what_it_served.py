"""``spec.rollbackTo``: an earlier revision serves again, made anew from its record; what is not believed of a record is never served."""

import json

import pytest
from endpoint_world import OTHER, SPEC, World

from rollout_api import names

HISTORY = ("ConfigMap", "chat-history")
FIRST, SECOND = "ab" * 32, "cd" * 32
RUNTIME = {"storage": {"uri": "s3://runs/team"}}
BEST = {"fromRun": {"name": "sft", "snapshot": "Best"}}


async def settle(world):
    await world.look(2)
    world.come_up()
    await world.look(3)


@pytest.fixture
async def changed():
    """An endpoint that has served one model, and serves another one."""
    world = World(replicas=2)
    await settle(world)
    world.first = world.selected()
    world.edit(model=OTHER)
    await settle(world)
    world.second = world.selected()
    assert world.first != world.second
    return world


async def test_the_revision_before_comes_up_beside_what_serves_and_takes_over_when_it_answers(
    changed,
):
    changed.edit(rollbackTo=changed.first)
    await changed.look(2)
    assert changed.selected() == changed.second
    assert sorted(changed.deployments()) == sorted([changed.first, changed.second])
    changed.come_up()
    await changed.look(3)

    assert (changed.selected(), list(changed.deployments())) == (changed.first, [changed.first])
    assert changed.condition("Ready") == ("True", "Serving")
    assert f"as spec.rollbackTo {changed.first} says" in changed.said("Progressing")
    before = changed.writes
    await changed.look(3)
    assert changed.writes == before

    changed.edit(rollbackTo=None)
    await settle(changed)
    assert changed.selected() == changed.second


async def test_it_has_as_many_servers_and_the_keys_that_the_endpoint_has_now(changed):
    key = {"name": "ann", "secretKeyRef": {"name": "keys", "key": "ann"}}
    changed.secrets.add("keys")
    changed.edit(rollbackTo=changed.first, replicas=3, apiKeys=[key])
    await settle(changed)
    live = changed.deployments()[changed.selected()]
    assert live["spec"]["replicas"] == 3
    assert "tiny-adder" in json.dumps(live)
    assert "api-keys" in json.dumps(live["spec"]["template"]), "a revoked key does not come back"


async def test_nobody_is_asked_about_it_again_and_no_sessions_are_shared():
    bar = {
        "suite": {"builtin": {"name": "arithmetic"}},
        "gate": {"metric": "accuracy", "lowerBound": "0.5", "action": "StopPromotion"},
    }
    world = World()
    await settle(world)
    first = world.selected()
    world.edit(model=OTHER)
    await settle(world)
    world.edit(rollbackTo=first, promotion={"evaluations": [bar], "canaryPercent": 10})
    await settle(world)
    assert (world.selected(), world.jobs) == (first, {})


async def test_when_each_served_last_is_on_record(changed):
    times = {one["name"]: one.get("servedTime") for one in changed.status["revisions"]}
    assert times[changed.second] > times[changed.first]
    changed.edit(model={"uri": "rollout://tiny-llama"})
    await changed.look(2)
    assert "servedTime" not in changed.status["revisions"][0]
    changed.edit(rollbackTo=changed.first)
    await settle(changed)
    again = {one["name"]: one.get("servedTime") for one in changed.status["revisions"]}
    assert again[changed.first] > times[changed.second]


async def test_the_model_of_a_run_that_is_another_by_now_is_served_by_its_digest():
    world = World(runtime=RUNTIME, model=BEST)
    uri = world.succeed("sft", FIRST)
    await settle(world)
    first = world.selected()
    world.succeed("sft", SECOND)
    await settle(world)
    assert world.selected() != first
    world.runs.clear()
    world.edit(rollbackTo=first)
    await settle(world)
    assert world.selected() == first
    assert uri in json.dumps(world.deployments()[first])
    assert world.condition("Ready") == ("True", "Serving")


async def test_a_revision_that_is_not_on_record_is_named_and_what_serves_goes_on(changed):
    changed.edit(rollbackTo="chat-0000000000")
    await changed.look(2)
    assert changed.condition("Stalled") == ("True", "ReferenceNotFound")
    assert changed.first in changed.said("Stalled")
    assert (changed.selected(), changed.condition("Available")[0]) == (changed.second, "True")


async def test_no_more_is_on_record_than_the_history_keeps_and_a_record_that_is_gone_is_written(
    changed,
):
    changed.edit(revisionHistoryLimit=2)
    for model in ("tiny-llama", "tiny-agent", "tiny-adder", "tiny-qwen2"):
        changed.edit(model={"uri": f"rollout://{model}"})
        await settle(changed)
    assert len(changed.objects[HISTORY]["data"]) <= 3
    del changed.objects[HISTORY]
    await changed.look()
    assert list(changed.objects[HISTORY]["data"]) == [changed.selected()]


async def test_what_a_runtime_forbids_by_now_does_not_come_back(changed):
    """Its ceilings are those of today, whatever was served once."""
    changed.runtime = {"ceilings": {"actorReplicas": 1}}
    changed.edit(rollbackTo=changed.first)
    await changed.look(2)
    assert changed.condition("Stalled") == ("True", "CeilingExceeded")
    assert list(changed.deployments()) == [changed.second]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("", "InvalidSpec"),
        ("[" * 5000, "InvalidSpec"),
        ('{"spec": 7}', "InvalidSpec"),
        ('{"spec": {"model": {"uri": "s3://victim/models"}}}', "InvalidSpec"),
        (
            '{"spec": {"model": {"uri": "rollout://tiny-adder"}, "hostNetwork": true}}',
            "InvalidSpec",
        ),
        (
            json.dumps({"spec": {**SPEC, "engine": {"vllm": {"image": "evil.example/vllm:1"}}}}),
            "NotAllowed",
        ),
        *(
            (
                json.dumps({"spec": {"model": BEST}, "handedOn": {"uri": uri, "digest": digest}}),
                "NotAllowed",
            )
            for uri, digest in (
                (f"s3://victim/team/ns/u/blake3/ab/{FIRST}", f"blake3:{FIRST}"),
                (f"s3://runs/team/other/u/blake3/ab/{FIRST}", f"blake3:{FIRST}"),
                (f"s3://runs/team/ns/../other/u/blake3/ab/{FIRST}", f"blake3:{FIRST}"),
                (f"s3://runs/team/ns/u/blake3/ab/{FIRST}", f"blake3:{SECOND}"),
                ("file:///etc", f"blake3:{FIRST}"),
            )
        ),
    ],
)
async def test_a_record_that_an_editor_wrote_gives_them_nothing(record, reason):
    world = World(runtime=RUNTIME)
    await settle(world)
    first = world.selected()
    world.objects[HISTORY]["data"]["chat-1234567890"] = record
    world.edit(rollbackTo="chat-1234567890")
    await world.look(2)
    assert world.condition("Stalled") == ("True", reason)
    assert (world.selected(), list(world.deployments())) == (first, [first])


async def test_records_of_somebody_elses_config_map_are_not_read():
    world = World()
    await settle(world)
    live = world.objects[HISTORY]
    live["metadata"]["ownerReferences"] = []
    name = world.selected()
    world.edit(rollbackTo=name)
    await world.look()
    assert world.condition("Stalled") == ("True", "ReferenceNotFound")


def test_the_longest_name_of_an_endpoint_has_room_for_its_history():
    assert len(names.history_name("e" * 40)) <= 253
