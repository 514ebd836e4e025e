"""Suspension gives every pod back and keeps the volume; resuming is a new run attempt."""

import pytest
from operators import eventually

pytestmark = pytest.mark.process


def test_suspended_is_said_only_when_the_pods_are_gone(world):
    world.apply()
    world.wait_for("Ready", "True")
    claims = world.kubectl.get("persistentvolumeclaims")["items"]

    world.patch({"suspend": True})
    world.wait_for("Suspended", "True", "Suspended")

    assert world.kubectl.get("pods")["items"] == []
    assert (
        world.kubectl.get("persistentvolumeclaims")["items"][0]["metadata"]["uid"]
        == (claims[0]["metadata"]["uid"])
    )
    assert world.run()["status"]["activeSeconds"] >= 0
    assert "startTime" not in world.run()["status"]


def test_resuming_is_a_new_attempt_with_the_edited_spec(world):
    world.apply()
    world.wait_for("Ready", "True")
    world.patch({"suspend": True})
    world.wait_for("Suspended", "True")
    image = {"actors": {"engine": {"vllm": {"image": "registry.example/other:1"}}}}
    world.patch({"suspend": False, **image})
    world.wait_for("Ready", "True", "Running")

    status = world.run()["status"]
    assert status["attempt"] == 2
    actors = world.kubectl.get("statefulset", "arithmetic-actors")
    images = {one["image"] for one in actors["spec"]["template"]["spec"]["containers"]}
    assert "registry.example/other:1" in images
    records = [
        one["metadata"]["name"]
        for one in world.kubectl.get("configmaps", "-l", "rollout.dev/attempt")["items"]
    ]
    assert records == [status["configuration"]]


def test_a_live_attempt_is_not_rendered_again(world):
    world.apply()
    world.wait_for("Ready", "True")
    before = world.kubectl.get("statefulset", "arithmetic-coordinator")

    world.patch({"limits": {"noProgressSeconds": 800}})
    eventually(
        lambda: world.run()["status"]["observedGeneration"] == 2, "the edit was not looked at"
    )

    after = world.kubectl.get("statefulset", "arithmetic-coordinator")
    assert after["spec"] == before["spec"]


def test_a_run_made_suspended_has_no_children(world):
    world.apply(spec={"suspend": True})
    world.wait_for("Suspended", "True")
    assert world.kubectl.get("statefulsets")["items"] == []

    world.patch({"suspend": False})
    world.wait_for("Ready", "True")
    assert world.run()["status"]["attempt"] == 1


def test_actors_are_scaled_without_touching_the_learner(world):
    world.apply()
    world.wait_for("Ready", "True")
    learners = world.pod_uids("learner")

    world.kubectl("scale", "rolloutrun/arithmetic", "--replicas=4")
    eventually(lambda: len(world.pod_uids("actor")) == 4, "actors were not scaled up")
    world.kubectl("scale", "rolloutrun/arithmetic", "--replicas=1")
    eventually(lambda: len(world.pod_uids("actor")) == 1, "actors were not scaled down")

    assert world.pod_uids("learner") == learners
