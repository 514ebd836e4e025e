"""What is asked of a queue is what the pods will be; what it gives is in the pods of that attempt alone."""

from dataclasses import replace

import pytest
from worlds import SPEC, build_inputs

from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.kueue.quota import Assignment, parse_quota
from rollout_operator.run.attempt import render_record
from rollout_operator.run.queue.claim import build_claim, build_workload
from rollout_operator.run.queue.keeper import is_at_rest
from rollout_operator.run.queue.placing import build_placement
from rollout_operator.run.render.inputs import Placement
from rollout_operator.run.render.pods import build_template

H100 = {
    "name": "h100",
    "memory": "80Gi",
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
}
RUNTIME = RuntimeSpec.model_validate({"acceleratorClasses": [H100]})
BIG = {**SPEC, "learner": {"nodes": 2, "accelerator": {"className": "h100", "count": 8}}}
SPOT = {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
FLAVORS = {"spot": {"spec": {"nodeLabels": {"pool": "spot"}, "tolerations": [SPOT]}}, "any": {}}


def claim(spec=BIG, labels=None, **settings):
    return build_claim(build_inputs(spec, RUNTIME), "gpus", labels or {})


def pod_set(role, spec=BIG):
    return next(one for one in claim(spec).pod_sets if one["name"] == role)


def quota(updates=(), **assignments):
    live = build_workload("run", "ns", "uid-0001", claim())
    live["metadata"] |= {"uid": "w", "resourceVersion": "7"}
    given = [{"name": role, **what} for role, what in assignments.items()]
    checks = [{"name": "check", "state": "Ready", "podSetUpdates": list(updates)}]
    live["status"] = {"admission": {"podSetAssignments": given}, "admissionChecks": checks}
    return parse_quota(live)


def test_a_pod_set_asks_for_what_its_pods_will():
    template = build_template(build_inputs(BIG, RUNTIME), "learner", "x")
    asked = pod_set("learner")
    spec = asked["template"]["spec"]
    assert asked["count"] == 2
    for name in ("nodeSelector", "tolerations"):
        assert spec[name] == template["spec"][name]
    assert [one["resources"] for one in spec["containers"]] == [
        one["resources"] for one in template["spec"]["containers"]
    ]
    assert spec["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "8"


def test_a_pod_set_tells_nothing_that_only_pods_need():
    text = str(claim().pod_sets)
    for word in ("volumeMounts", "env", "secret", "serviceAccount", "command"):
        assert word not in text


def test_a_workload_belongs_to_its_run_and_is_held_by_us():
    live = build_workload("run", "ns", "uid-0001", claim())
    meta = live["metadata"]
    assert meta["labels"]["rollout.dev/run-uid"] == "uid-0001"
    assert meta["ownerReferences"][0]["uid"] == "uid-0001"
    assert meta["finalizers"] == ["rollout.dev/quota"]
    assert len(meta["name"]) <= 63
    assert "active" not in live["spec"]
    assert build_workload("run", "ns", "uid-0002", claim())["metadata"]["name"] != meta["name"]


@pytest.mark.parametrize(
    ("labels", "learner", "kind", "name"),
    [
        ({"kueue.x-k8s.io/priority-class": "top"}, {}, "WorkloadPriorityClass", "top"),
        ({}, {"priorityClassName": "pods"}, "PriorityClass", "pods"),
        (
            {"kueue.x-k8s.io/priority-class": "top"},
            {"priorityClassName": "pods"},
            "WorkloadPriorityClass",
            "top",
        ),
    ],
)
def test_the_priority_is_the_labels_else_that_of_the_pods(labels, learner, kind, name):
    made = claim({**SPEC, "learner": learner}, labels)
    assert made.priority is not None
    assert (made.priority.kind, made.priority.name) == (kind, name)
    assert build_workload("r", "n", "u", made)["spec"]["priorityClassRef"]["kind"] == kind


def test_a_run_without_a_class_names_none():
    assert claim(SPEC).priority is None
    assert "priorityClassRef" not in build_workload("r", "n", "u", claim(SPEC))["spec"]


def test_a_class_that_changes_its_value_is_no_other_question():
    made = claim({**SPEC, "learner": {"priorityClassName": "pods"}})
    assert made.priority is not None
    assert replace(made, priority=replace(made.priority, value=9)).digest == made.digest
    assert claim(SPEC).digest != made.digest


def test_topology_that_pods_ask_for_is_asked_of_the_queue():
    mark = {"kueue.x-k8s.io/podset-required-topology": "cloud/block"}
    asked = pod_set("learner", {**SPEC, "learner": {"annotations": mark}})
    assert asked["topologyRequest"]["required"] == "cloud/block"
    assert "topologyRequest" not in pod_set("actor", SPEC)


def test_a_flavor_is_node_labels_and_tolerations():
    given = Assignment(role="learner", count=2, flavors=("any", "spot"))
    placed = build_placement(quota(learner={}), given, FLAVORS)
    assert placed.node_selector == {"pool": "spot"}
    assert placed.tolerations == (SPOT,)
    assert placed.gates == ()


def test_an_admission_check_adds_to_its_role_alone():
    update = {
        "name": "learner",
        "nodeSelector": {"reservation": "r1"},
        "annotations": {"a": "1"},
        "labels": {"l": "2"},
        "tolerations": [SPOT],
    }
    seen = quota([update], learner={}, actor={})
    learner = Assignment(role="learner", count=2, flavors=("spot",))
    placed = build_placement(seen, learner, FLAVORS)
    assert placed.node_selector == {"pool": "spot", "reservation": "r1"}
    assert placed.tolerations == (SPOT,)
    assert (placed.labels, placed.annotations) == ({"l": "2"}, {"a": "1"})
    assert build_placement(seen, Assignment(role="actor", count=1), FLAVORS) == Placement()


def test_pods_that_kueue_places_itself_wait_for_it():
    seen = quota(learner={"topologyAssignment": {"levels": ["host"]}, "count": 2})
    placed = build_placement(seen, seen.assignments[0], FLAVORS)
    assert placed.gates == ("kueue.x-k8s.io/topology",)
    assert placed.labels == {"kueue.x-k8s.io/podset": "learner"}
    assert placed.annotations == {
        "kueue.x-k8s.io/workload": seen.name,
        "kueue.x-k8s.io/podset-unconstrained-topology": "true",
    }
    asked = replace(seen.assignments[0], asked=True)
    assert build_placement(seen, asked, FLAVORS).annotations == {
        "kueue.x-k8s.io/workload": seen.name
    }


def test_a_placement_is_in_the_pods_of_its_role_and_attempt():
    inputs = build_inputs(BIG, RUNTIME)
    spot = Placement(node_selector={"pool": "spot"}, tolerations=(SPOT,), gates=("wait",))
    placed = replace(inputs, placements={"learner": spot})
    learner = build_template(placed, "learner", "x")["spec"]
    assert learner["nodeSelector"] == {"gpu": "h100", "pool": "spot"}
    assert SPOT in learner["tolerations"]
    assert learner["schedulingGates"] == [{"name": "wait"}]
    assert build_template(placed, "actor", "x") == build_template(inputs, "actor", "x")
    assert render_record(placed).name != render_record(inputs).name
    assert render_record(placed).name == render_record(placed).name


def test_a_toleration_that_is_there_is_not_repeated():
    inputs = build_inputs(BIG, RUNTIME)
    same = Placement(tolerations=(dict(H100["tolerations"][0]),))
    placed = replace(inputs, placements={"learner": same})
    assert build_template(placed, "learner", "x") == build_template(inputs, "learner", "x")


@pytest.mark.parametrize(
    ("wanted", "seen", "there", "rest"),
    [(0, 3, 0, True), (1, 3, 0, False), (0, 2, 0, False), (0, 3, 1, False)],
)
def test_a_set_is_at_rest_when_its_controller_has_seen_that_it_shall_be(wanted, seen, there, rest):
    live = {
        "metadata": {"generation": 3},
        "spec": {"replicas": wanted},
        "status": {"observedGeneration": seen, "replicas": there},
    }
    assert is_at_rest(live) is rest
