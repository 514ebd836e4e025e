"""Our fields come back, the fields of others stay, and an endless quarrel is reported, not fought."""

import pytest
from operators import eventually

pytestmark = pytest.mark.process

POLICY = ("networkpolicy", "arithmetic-learner")


def spoil(world):
    patch = '{"spec":{"podSelector":{"matchLabels":{"rollout.dev/role":"nobody"}}}}'
    world.kubectl("patch", *POLICY, "--type=merge", "-p", patch, "--field-manager=meddler")


def selected(world):
    found = world.kubectl.get(*POLICY)
    return found["spec"]["podSelector"]["matchLabels"]["rollout.dev/role"]


def test_a_deleted_child_comes_back(world):
    world.apply()
    world.wait_for("Ready", "True")
    before = world.kubectl.get("service", "arithmetic-learner")["metadata"]["uid"]
    world.kubectl("delete", "service", "arithmetic-learner")

    def is_back():
        found = world.kubectl("get", "service", "--ignore-not-found", "-o", "name")
        return "service/arithmetic-learner" in found

    eventually(is_back, "the Service did not come back")
    assert world.kubectl.get("service", "arithmetic-learner")["metadata"]["uid"] != before


def test_a_deleted_secret_comes_back_at_once_though_nobody_watches_secrets(world):
    world.apply()
    world.wait_for("Ready", "True")
    before = world.kubectl.get("secret", "arithmetic-tls")["metadata"]["uid"]
    world.kubectl("delete", "secret", "arithmetic-tls")

    def is_back():
        found = world.kubectl("get", "secret", "--ignore-not-found", "-o", "name")
        return "secret/arithmetic-tls" in found

    eventually(is_back, "the Secret did not come back", seconds=30)
    secret = world.kubectl.get("secret", "arithmetic-tls")
    assert secret["metadata"]["uid"] != before

    def owned_by_both():
        owners = world.kubectl.get("configmap", "arithmetic-keys")["metadata"]["ownerReferences"]
        return {one["uid"] for one in owners} >= {secret["metadata"]["uid"]} and len(owners) == 2

    eventually(owned_by_both, "the token keys do not name the new Secret")
    assert world.condition("Stalled") == {}


def test_our_field_is_taken_back_and_the_labels_of_others_stay(world):
    world.apply()
    world.wait_for("Ready", "True")
    world.kubectl("label", *POLICY, "team=research")
    world.kubectl("annotate", "statefulset", "arithmetic-actors", "note=mine")
    spoil(world)
    eventually(lambda: selected(world) == "learner", "the field did not come back")
    assert world.kubectl.get(*POLICY)["metadata"]["labels"]["team"] == "research"
    actors = world.kubectl.get("statefulset", "arithmetic-actors")
    assert actors["metadata"]["annotations"]["note"] == "mine"


def test_an_endless_quarrel_is_reported_with_the_other_writer(world):
    world.apply()
    world.wait_for("Ready", "True")
    for _ in range(3):
        spoil(world)
        eventually(lambda: selected(world) == "learner", "the field did not come back")
    spoil(world)
    stalled = world.wait_for("Stalled", "True", "FieldConflict")
    assert "meddler" in stalled["message"]
    assert "podSelector" in stalled["message"]
    assert selected(world) == "nobody"


def test_a_child_of_somebody_else_is_not_taken_over(world):
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "arithmetic-learner"},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "other"}},
    }
    world.kubectl.apply(service)
    world.apply()
    stalled = world.wait_for("Stalled", "True", "FieldConflict")
    assert "Service arithmetic-learner" in stalled["message"]
    kept = world.kubectl.get("service", "arithmetic-learner")
    assert kept["spec"]["selector"] == {"app": "other"}
