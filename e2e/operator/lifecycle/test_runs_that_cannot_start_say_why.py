"""With no webhook at all: what cannot run makes nothing and names field, reason and remedy."""

import time

import pytest
from operators import eventually

from runs import build_run
from waiting import Pace

pytestmark = pytest.mark.process

NO_CLASS_SECONDS_MAX = 10.0  # short: a promise, stretched on a busy machine
CASES = {
    "invalid": ({"actors": {"nodesPerReplica": 2}}, "InvalidSpec"),
    "runtime": ({"runtimeRef": {"name": "none"}}, "RuntimeNotFound"),
    "class": (
        {"storage": {"ledger": {"sqlite": {"storageClassName": "none"}}}},
        "NoStorageClass",
    ),
    "secret": (
        {"env": [{"name": "HF_X", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k"}}}]},
        "ReferenceNotFound",
    ),
    "devices": ({"learner": {"accelerator": {"className": "h100"}}}, "InvalidSpec"),
    "queue": ({"queueName": "research"}, "KueueNotInstalled"),
    "upstream": ({"model": {"uri": None, "fromRun": {"name": "nobody"}}}, "ReferenceNotFound"),
    "round": ({"model": {"uri": None, "fromRun": {"name": "and-round"}}}, "InvalidSpec"),
    "and-round": ({"model": {"uri": None, "fromRun": {"name": "round"}}}, "InvalidSpec"),
}


def test_each_reason_is_said_and_nothing_is_made(world):
    world.kubectl.apply(*(build_run(name, spec) for name, (spec, _) in CASES.items()))
    for name, (_, reason) in CASES.items():
        stalled = world.wait_for("Stalled", "True", reason, name)
        assert len(stalled["message"]) > 20
    assert world.kubectl.get("statefulsets")["items"] == []


def test_a_missing_storage_class_is_said_within_ten_seconds_and_noticed_when_it_comes(world):
    """A promised bound, so the clock is asked."""
    name = f"fast-{world.kubectl.namespace}"
    ledger = {"sqlite": {"storageClassName": name}}
    with Pace() as pace:
        began = time.monotonic()
        world.apply(spec={"storage": {"ledger": ledger}})
        said = world.wait_for("Stalled", "True", "NoStorageClass")
        took = time.monotonic() - began
    assert took < pace.stretch(NO_CLASS_SECONDS_MAX)
    assert name in said["message"]

    provisioner = "kubernetes.io/no-provisioner"
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"}
    world.kubectl.apply({**kind, "metadata": {"name": name}, "provisioner": provisioner})
    world.wait_for("Ready", "True", "Running")
    world.kubectl("delete", "storageclass", name)


def test_a_mended_run_starts(world):
    world.kubectl.apply(build_run("arithmetic", CASES["secret"][0]))
    world.wait_for("Stalled", "True", "ReferenceNotFound")
    world.kubectl("create", "secret", "generic", "none", "--from-literal=k=v")
    world.wait_for("Ready", "True", "Running")


def test_a_run_waits_for_the_run_it_starts_from(world):
    second = {"model": {"uri": None, "fromRun": {"name": "arithmetic"}}}
    world.kubectl.apply(build_run("second", second), build_run("arithmetic"))
    world.wait_for("Ready", "True", "Running")
    world.wait_for("Reconciling", "True", "WaitingForRun", "second")


def test_runs_of_another_controller_are_left_alone(world):
    world.apply("other", {"managedBy": "kueue.x-k8s.io/multikueue"})
    world.apply()
    world.wait_for("Ready", "True")
    assert world.run("other").get("status", {}) == {}


def test_an_endpoint_of_what_is_not_built_and_a_snapshot_of_nothing_say_so(world):
    head = {"apiVersion": "rollout.dev/v1alpha1", "metadata": {"name": "x"}}
    snapshot = {**head, "kind": "RolloutSnapshot", "spec": {"source": {"run": {"name": "a"}}}}
    spec = {"model": {"uri": "rollout://tiny-qwen2"}, "queueName": "research"}
    endpoint = {**head, "kind": "RolloutEndpoint", "spec": spec}
    world.kubectl.apply(snapshot, endpoint)
    reasons = {"rolloutsnapshot": "ReferenceNotFound", "rolloutendpoint": "InvalidSpec"}
    for kind, reason in reasons.items():

        def stalled(kind=kind):
            found = world.kubectl.get(kind, "x").get("status", {}).get("conditions", ())
            return {one["reason"] for one in found if one["type"] == "Stalled"}

        assert eventually(stalled, f"{kind} was not refused") == {reason}


def test_a_run_waits_for_the_snapshot_that_it_begins_with_and_a_snapshot_for_its_deadline(world):
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutSnapshot"}
    spec = {"source": {"run": {"name": "nobody"}}, "deadlineSeconds": 5}
    world.kubectl.apply(build_run("second", {"restoreFrom": {"snapshotRef": {"name": "late"}}}))
    world.wait_for("Stalled", "True", "ReferenceNotFound", "second")
    world.kubectl.apply({**head, "metadata": {"name": "late"}, "spec": spec})

    def failed():
        found = world.kubectl.get("rolloutsnapshot", "late").get("status", {}).get("conditions", ())
        return {one["reason"] for one in found if one["type"] == "Failed"}

    assert eventually(failed, "the snapshot has not failed") == {"DeadlineExceeded"}
    world.wait_for("Stalled", "True", "WaitingForSnapshot", "second")
