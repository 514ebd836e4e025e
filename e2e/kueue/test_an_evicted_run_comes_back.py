"""Real Kueue: preemption, eviction by hand and a stopped queue suspend in order; quota is held until pods are gone."""

import json

import pytest
from kueue_objects import spec_of

pytestmark = [pytest.mark.process, pytest.mark.slow]

PRIORITY = "kueue.x-k8s.io/priority-class"
HOLD = '{"metadata":{"finalizers":["tests.rollout.dev/hold"]}}'
FREE = '{"metadata":{"finalizers":null}}'


def test_who_has_priority_goes_first_and_the_other_comes_back(stage, queue):
    queue(devices=4)
    stage.start("modest", spec_of(4), **{PRIORITY: "low"})
    stage.wait_for("Ready", "True", "Running", name="modest")
    first = stage.workload("modest")["metadata"]["uid"]
    stage.kubectl("patch", "pod", "modest-learner-0", "--type=merge", "-p", HOLD)

    stage.start("urgent", spec_of(4), **{PRIORITY: "high"})
    stage.until(lambda: stage.said("Evicted", "modest") == ("True", "Preempted"), "no preemption")
    stage.until(
        lambda: stage.replicas()["modest-learner"] == 0,
        "the preempted run goes on as if nothing was",
    )
    assert stage.admitted("modest")
    assert not stage.admitted("urgent")
    assert stage.pods("urgent") == []

    stage.kubectl("patch", "pod", "modest-learner-0", "--type=merge", "-p", FREE)
    stage.wait_for("Ready", "True", "Running", name="urgent")
    assert stage.pods("modest") == []
    stage.wait_for("Ready", "False", "Queued", name="modest")
    assert stage.condition("Suspended", "modest")["reason"] == "Evicted"
    assert stage.said("Requeued", "modest") == ("True", "Preempted")

    stage.succeed("urgent")
    stage.wait_for("Ready", "True", "Running", name="modest")
    assert stage.run("modest")["status"]["attempt"] == 2
    assert stage.workload("modest")["metadata"]["uid"] == first
    assert stage.condition("Suspended", "modest") == {}


def test_a_workload_that_is_deactivated_rests_until_it_is_active_again(stage, queue):
    queue(devices=4)
    stage.start("arithmetic", spec_of(4))
    stage.wait_for("Ready", "True", "Running")
    activate(stage, active=False)
    stage.wait_for("Stalled", "True", "Queued")
    assert "spec.active" in stage.condition("Stalled")["message"]
    assert stage.pods() == []
    assert stage.said("QuotaReserved")[0] == "False"

    activate(stage, active=True)
    stage.wait_for("Ready", "True", "Running")
    assert stage.run()["status"]["attempt"] == 2


def test_a_queue_that_is_drained_evicts_and_admits_again(stage, queue):
    queue(devices=4)
    stage.start("arithmetic", spec_of(4))
    stage.wait_for("Ready", "True", "Running")
    stop(stage, "HoldAndDrain")
    stage.wait_for("Suspended", "True", "Evicted")
    assert stage.pods() == []
    stop(stage, "None")
    stage.wait_for("Ready", "True", "Running")


def test_a_deleted_workload_suspends_its_run_and_is_made_anew(stage, queue):
    queue(devices=4)
    stage.start("arithmetic", spec_of(4))
    stage.wait_for("Ready", "True", "Running")
    before = stage.workload()["metadata"]
    stage.kubectl("delete", "workloads.kueue.x-k8s.io", before["name"], "--wait=false")
    stage.until(
        lambda: stage.workload().get("metadata", {}).get("uid", before["uid"]) != before["uid"],
        "no new Workload",
    )
    stage.wait_for("Ready", "True", "Running")
    assert stage.run()["status"]["attempt"] == 2


def test_actors_scale_within_their_quota_and_no_further(stage, queue):
    queue(devices=4)
    stage.start("arithmetic", spec_of(1, actors={"replicas": 2}))
    stage.wait_for("Ready", "True", "Running")
    learners = stage.pod_uids("learner")
    stage.kubectl("scale", "rolloutrun/arithmetic", "--replicas=5")
    stage.wait_for("ActorsReady", "False", "PartiallyAdmitted")
    assert len(stage.pod_uids("actor")) == 2
    stage.kubectl("scale", "rolloutrun/arithmetic", "--replicas=1")
    stage.until(lambda: len(stage.pod_uids("actor")) == 1, "actors were not scaled down")
    stage.kubectl("scale", "rolloutrun/arithmetic", "--replicas=2")
    stage.wait_for("ActorsReady", "True")
    assert stage.pod_uids("learner") == learners
    assert stage.condition("Ready")["status"] == "True"


def test_who_is_managed_by_somebody_else_is_left_alone(stage, queue):
    queue(devices=4)
    stage.start("other", spec_of(1, managedBy="kueue.x-k8s.io/multikueue"))
    stage.start("arithmetic", spec_of(1))
    stage.wait_for("Ready", "True", "Running")
    assert "status" not in stage.run("other")
    assert stage.workload("other") == {}


def activate(stage, *, active):
    name = stage.workload()["metadata"]["name"]
    body = json.dumps({"spec": {"active": active}})
    stage.kubectl("patch", "workloads.kueue.x-k8s.io", name, "--type=merge", "-p", body)


def stop(stage, policy):
    body = json.dumps({"spec": {"stopPolicy": policy}})
    stage.kubectl("patch", "clusterqueue", stage.kubectl.namespace, "--type=merge", "-p", body)
