"""What a person sees with kubectl alone: a manual, columns, strictness, and objects that do not change by themselves."""

import json
from typing import Any

import pytest

from cluster.kubectl import Kubectl
from runs import build_run, install_crds

pytestmark = pytest.mark.control_plane


@pytest.fixture(scope="module")
def server(fake_cluster: Any) -> Kubectl:
    install_crds(fake_cluster.kubectl)
    return fake_cluster.kubectl


@pytest.fixture
def kubectl(server: Kubectl, fake: Kubectl) -> Kubectl:
    return fake


def test_explain_is_a_manual(kubectl: Kubectl):
    tree = kubectl("explain", "rolloutrun.spec", "--recursive")
    for field in ("groupSize", "tensorParallel", "noProgressSeconds", "secretKeyRef"):
        assert field in tree
    page = kubectl("explain", "rolloutrun.spec.limits.gangSeconds")
    assert "A learner group that is not complete by then gives its devices back" in page


def test_a_run_has_a_short_name_a_category_and_columns(kubectl: Kubectl):
    kubectl.apply(build_run())
    assert "rolloutrun.rollout.dev/arithmetic" in kubectl("get", "rollout", "-o", "name")
    assert "rolloutrun" not in kubectl("get", "all", "-o", "name")
    head, row = kubectl("get", "rrun").splitlines()
    assert head.split() == [
        "NAME",
        "READY",
        "REASON",
        "STEP",
        "REWARD",
        "ACTORS",
        "LEARNERS",
        "AGE",
    ]
    assert row.startswith("arithmetic")
    counts = {"ready": 1, "desired": 3}
    status = json.dumps({"status": {"actors": counts, "learner": counts}})
    kubectl("patch", "rrun/arithmetic", "--subresource=status", "--type=merge", "-p", status)
    assert kubectl("get", "rrun").splitlines()[1].split()[1:3] == ["1", "1"]
    wide = kubectl("get", "rrun", "-o", "wide").splitlines()[1].split()
    assert wide[1:5] == ["1", "1", "3", "3"]


def test_an_autoscaler_reads_the_scale_of_a_run(kubectl: Kubectl):
    kubectl.apply(build_run())
    status = {"actors": {"replicas": 1}, "selector": "rollout.dev/role=actor"}
    body = json.dumps({"status": status})
    kubectl("patch", "rrun/arithmetic", "--subresource=status", "--type=merge", "-p", body)
    target = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun", "name": "arithmetic"}
    utilization = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
    kubectl.apply(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "arithmetic"},
            "spec": {
                "scaleTargetRef": target,
                "maxReplicas": 4,
                "metrics": [{"type": "Resource", "resource": utilization}],
            },
        }
    )
    kubectl.wait("--for=condition=AbleToScale", "hpa/arithmetic")
    found = kubectl.get("hpa", "arithmetic")["status"]["conditions"]
    assert {one["reason"] for one in found if one["type"] == "AbleToScale"} == {"SucceededGetScale"}


def test_applying_twice_changes_nothing(kubectl: Kubectl):
    kubectl.apply(build_run())
    before = kubectl.get("rrun", "arithmetic")["metadata"]
    assert "unchanged" in kubectl.apply(build_run())
    after = kubectl.get("rrun", "arithmetic")["metadata"]

    assert after["generation"] == 1
    assert after["resourceVersion"] == before["resourceVersion"]


def test_an_unknown_field_is_refused_and_without_strictness_dropped(kubectl: Kubectl):
    document = json.dumps(build_run(spec={"train": {"maxStep": 4}}))
    strict = kubectl.attempt("create", "-f", "-", stdin=document)
    assert 'unknown field "spec.train.maxStep"' in strict.stderr

    kubectl("create", "--validate=false", "-f", "-", stdin=document)
    assert "maxStep" not in kubectl.get("rrun", "arithmetic")["spec"]["train"]


def test_two_managers_own_entries_of_one_list(kubectl: Kubectl):
    for manager, name in (("one", "A"), ("other", "B")):
        document = build_run(spec={"suspend": True, "env": [{"name": name, "value": "1"}]})
        apply = ("apply", "--server-side", f"--field-manager={manager}", "-f", "-")
        kubectl(*apply, stdin=json.dumps(document))

    found = {one["name"] for one in kubectl.get("rrun", "arithmetic")["spec"]["env"]}
    assert found == {"A", "B"}


def test_what_a_preset_may_set_has_no_default_in_the_schema(kubectl: Kubectl):
    kubectl.apply(build_run())
    spec = kubectl.get("rrun", "arithmetic")["spec"]
    assert "optimizer" not in spec["train"]
    assert "learner" not in spec
    assert spec["actors"] == {"replicas": 1}
