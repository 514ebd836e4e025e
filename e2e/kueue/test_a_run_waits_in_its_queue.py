"""Real Kueue: a run is gated, admitted with its flavor, and ends by giving its quota back."""

import json

import pytest
from kueue_objects import spec_of

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_a_run_has_no_children_before_it_is_admitted(stage, queue):
    queue(devices=2)
    stage.start("arithmetic", spec_of(4))
    stage.wait_for("Ready", "False", "Queued")
    stage.until(lambda: stage.said("QuotaReserved") == ("False", "Pending"), "Kueue did not look")
    stage.until(
        lambda: "insufficient" in stage.condition("Ready")["message"], "the run does not say why"
    )
    assert stage.condition("Admitted")["status"] == "False"
    kinds = "statefulsets,configmaps,services"
    assert stage.kubectl.get(kinds, "-l", "rollout.dev/run")["items"] == []
    made = stage.workload()
    assert [one["name"] for one in made["spec"]["podSets"]] == ["coordinator", "learner", "actor"]
    assert made["metadata"]["ownerReferences"][0]["name"] == "arithmetic"
    assert made["metadata"]["labels"]["rollout.dev/run-uid"] == stage.run()["metadata"]["uid"]

    quota = [{"op": "replace", "path": PATH, "value": "4"}]
    patch(stage, quota)
    stage.wait_for("Ready", "True", "Running")


def test_an_admitted_run_goes_where_its_flavor_is(stage, queue):
    queue(devices=8, flavor="spot")
    stage.start("arithmetic", spec_of(4))
    stage.wait_for("Ready", "True", "Running")
    stage.until(lambda: stage.said("PodsReady") == ("True", "Started"), "Kueue was not told")
    pods = stage.pods()
    assert {one["spec"]["nodeName"] for one in pods} == {"fake-1"}
    assert all(one["spec"]["nodeSelector"]["pool"] == "spot" for one in pods)
    assert stage.condition("Admitted")["reason"] == "QuotaReserved"
    runtime = stage.kubectl.get("clusterrolloutruntime", "default")
    assert "pool" not in str(runtime["spec"])


def test_the_label_is_a_queue_too(stage, queue):
    queue(devices=8)
    spec = spec_of(1)
    del spec["queueName"]
    stage.start("arithmetic", spec, **{"kueue.x-k8s.io/queue-name": "gpus"})
    stage.wait_for("Ready", "True", "Running")
    assert stage.workload()["spec"]["queueName"] == "gpus"


def test_a_queue_that_is_missing_is_named(stage, queue):
    stage.start("arithmetic", spec_of(1))
    stage.wait_for("Stalled", "True", "Queued")
    assert "LocalQueue gpus doesn't exist" in stage.condition("Stalled")["message"]
    queue(devices=8)
    stage.wait_for("Ready", "True", "Running")


def test_two_runs_that_do_not_fit_at_once_run_one_after_the_other(stage, queue):
    queue(devices=4)
    stage.start("first", spec_of(4))
    stage.wait_for("Ready", "True", "Running", name="first")
    stage.start("second", spec_of(4))
    stage.wait_for("Ready", "False", "Queued", name="second")
    assert stage.pods("second") == []

    stage.succeed("first")
    stage.wait_for("Finished", "True", "Succeeded", name="first")
    stage.wait_for("Ready", "True", "Running", name="second")

    assert stage.pods("first") == []
    assert stage.said("Finished", "first") == ("True", "Succeeded")
    assert "finalizers" not in stage.workload("first")["metadata"]


def test_a_suspended_run_leaves_the_queue_to_others(stage, queue):
    queue(devices=4)
    stage.start("first", spec_of(4))
    stage.wait_for("Ready", "True", "Running", name="first")
    stage.start("second", spec_of(4))
    stage.patch({"suspend": True}, "first")
    stage.wait_for("Suspended", "True", "Suspended", name="first")
    stage.until(lambda: not stage.workload("first"), "the Workload stayed")
    stage.wait_for("Ready", "True", "Running", name="second")

    stage.patch({"suspend": False}, "first")
    stage.wait_for("Ready", "False", "Queued", name="first")
    stage.succeed("second")
    stage.wait_for("Ready", "True", "Running", name="first")
    assert stage.run("first")["status"]["attempt"] == 2


def test_a_deleted_run_holds_its_quota_until_its_pods_are_gone(stage, queue):
    queue(devices=4)
    stage.start("first", spec_of(4))
    stage.wait_for("Ready", "True", "Running", name="first")
    stage.start("second", spec_of(4))
    stage.wait_for("Ready", "False", "Queued", name="second")
    hold = '{"metadata":{"finalizers":["tests.rollout.dev/hold"]}}'
    stage.kubectl("patch", "pod", "first-learner-0", "--type=merge", "-p", hold)

    stage.kubectl("delete", "rolloutrun", "first", "--wait=false")
    stage.until(
        lambda: [one["metadata"]["name"] for one in stage.pods("first")] == ["first-learner-0"],
        "pods stayed",
    )
    assert stage.kubectl.attempt("get", "rolloutrun", "first").returncode != 0
    assert stage.workload("first")["metadata"]["deletionTimestamp"]
    assert stage.admitted("first")
    assert not stage.admitted("second")

    free = '{"metadata":{"finalizers":null}}'
    stage.kubectl("patch", "pod", "first-learner-0", "--type=merge", "-p", free)
    stage.until(lambda: not stage.workload("first"), "the Workload stayed")
    stage.wait_for("Ready", "True", "Running", name="second")


PATH = "/spec/resourceGroups/0/flavors/0/resources/2/nominalQuota"


def patch(stage, change):
    name = stage.kubectl.namespace
    stage.kubectl("patch", "clusterqueue", name, "--type=json", "-p", json.dumps(change))
