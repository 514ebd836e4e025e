"""From apply to children, to a status that follows them, to nothing left."""

import pytest
from operators import eventually

pytestmark = pytest.mark.process

CHILDREN = {
    "statefulsets": {"arithmetic-coordinator", "arithmetic-learner", "arithmetic-actors"},
    "services": {"arithmetic-coordinator", "arithmetic-learner", "arithmetic-actors"},
    "roles": set(),
    "rolebindings": {"arithmetic-progress"},
    "networkpolicies": {"arithmetic-coordinator", "arithmetic-learner", "arithmetic-actors"},
    "poddisruptionbudgets": {"arithmetic-learner", "arithmetic-actors"},
    "secrets": {"arithmetic-tls"},
}


def test_every_child_is_made_and_everything_comes_up_in_order(world):
    world.apply()
    world.wait_for("Ready", "True", "Running")

    for kind, names in CHILDREN.items():
        found = {one["metadata"]["name"] for one in world.kubectl.get(kind)["items"]}
        assert names <= found, kind
    status = world.run()["status"]
    assert status["observedGeneration"] == 1
    assert status["attempt"] == 1
    kinds = {one["type"] for one in status["conditions"]}
    assert "Reconciling" not in kinds
    assert "Stalled" not in kinds
    assert all(one["observedGeneration"] == 1 for one in status["conditions"])
    assert world.run()["metadata"].get("finalizers", []) == []
    assert world.replicas() == {
        "arithmetic-coordinator": 1,
        "arithmetic-learner": 1,
        "arithmetic-actors": 1,
    }


def test_pods_find_each_other_before_they_are_ready(world):
    """The ranks of a group meet before any of them can say that it is ready."""
    world.apply()
    world.wait_for("Ready", "True", "Running")
    for name in CHILDREN["services"]:
        service = world.kubectl.get("service", name)["spec"]
        assert service["clusterIP"] == "None"
        assert service["publishNotReadyAddresses"] is True
        owner = world.kubectl.get("statefulset", name)["spec"]
        assert owner["serviceName"] == name


def test_no_annotation_or_finalizer_of_kopf_is_ever_written(world):
    world.apply()
    world.wait_for("Ready", "True")
    text = world.kubectl("get", "rolloutrun,sts,svc,cm,pods", "-o", "yaml")
    assert "kopf" not in text


def test_deleting_the_run_leaves_nothing(world):
    world.apply()
    world.wait_for("Ready", "True")
    world.kubectl("delete", "rolloutrun", "arithmetic", "--cascade=foreground")

    def nothing_left():
        kinds = ",".join(CHILDREN)
        return not world.kubectl.get(kinds, "-l", "rollout.dev/run=arithmetic")["items"]

    eventually(nothing_left, "children of a deleted run are still there")


def test_a_healthy_run_posts_at_most_five_events(world):
    world.apply()
    world.wait_for("Ready", "True")
    world.succeed()
    world.wait_for("Finished", "True", "Succeeded")
    eventually(lambda: not world.pod_uids("coordinator"), "pods of a finished run are still there")

    events = world.kubectl.get("events", "--field-selector=involvedObject.kind=RolloutRun")
    reasons = [one["reason"] for one in events["items"]]
    assert sorted(reasons) == ["Running", "Starting", "Succeeded"]
