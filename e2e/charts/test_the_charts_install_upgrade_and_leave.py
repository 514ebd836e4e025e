"""Helm against a real API server, in a control plane of its own: install, upgrade, policies, uninstall."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import releases
import yaml
from releases import helm

import charts
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster, Shape, running
from cluster.skips import or_skip
from rollout_operator.certs.issue import new_authority
from runs import build_run

pytestmark = pytest.mark.control_plane

CONFIGURATION = "rollout-webhook"
VALUES = {"operator": {"replicas": 2}, "webhook": {"replicas": 2}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with or_skip(), running(Shape(fake_nodes=2)) as made:
        releases.prepare(made.kubectl)
        yield made


@pytest.fixture(scope="module")
def kubectl(cluster: LocalCluster) -> Kubectl:
    return cluster.kubectl


@pytest.fixture(scope="module")
def installed(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Both charts, and the file of values they were installed with."""
    values = tmp_path_factory.mktemp("values") / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES))
    helm(kubectl, "install", "rollout-crds", str(charts.CRDS_CHART))
    helm(kubectl, "install", "rollout", str(charts.CHART), "--values", str(values))
    yield values


@pytest.fixture
def inside(kubectl: Kubectl) -> Kubectl:
    return replace(kubectl, namespace=charts.NAMESPACE)


@pytest.fixture
def open_door(kubectl: Kubectl, installed: Path) -> Iterator[None]:
    """Runs may be made though nobody answers reviews: the fake pods do not."""
    releases.open_door(kubectl)
    yield
    releases.close_door(kubectl)


def test_everything_that_is_rendered_is_accepted_by_the_server(installed: Path, inside: Kubectl):
    foreign = {"monitoring.coreos.com/v1", "cert-manager.io/v1"}
    inputs = [{"files": (path,)} for path in sorted(charts.CHART.glob("values-*.yaml"))]
    inputs.append({"values": {"namespaces": ["default"]}})
    for given in inputs:
        made = charts.objects(charts.render(**given))
        ours = [one for one in made if one["apiVersion"] not in foreign]
        stdin = json.dumps({"apiVersion": "v1", "kind": "List", "items": ours})
        flags = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
        for one in ours:
            one["metadata"].setdefault("namespace", charts.NAMESPACE)
        replace(inside, namespace="")("apply", *flags, "-f", "-", stdin=stdin)


def test_pods_are_admitted_under_the_restricted_standard(installed: Path, inside: Kubectl):
    for name in ("operator", "webhook", "certificates"):
        inside.wait("--for=condition=Available", f"deployment/rollout-{name}", seconds=400)


def test_the_default_runtime_is_there_and_says_nothing_but_that_all_may_name_it(
    installed: Path, kubectl: Kubectl
):
    spec = kubectl.get("clusterrolloutruntime", "default")["spec"]
    assert spec == {"allowedNamespaces": {"from": "All"}}


def test_runs_are_refused_while_nobody_answers_and_nothing_else_is(
    installed: Path, kubectl: Kubectl
):
    document = json.dumps(build_run("refused"))
    answer = kubectl.attempt("create", "-f", "-", stdin=document)
    assert answer.returncode != 0
    assert "runs.rollout.dev" in answer.stderr

    kubectl("create", "configmap", "unrelated")
    runtime = build_run("mine") | {"kind": "RolloutRuntime", "spec": {"queueName": "gpus"}}
    kubectl.apply(runtime)
    kubectl("delete", "rrt", "mine")


def test_runs_can_always_be_deleted(installed: Path, kubectl: Kubectl, open_door: None):
    kubectl.apply(build_run("leaving"))
    kubectl("delete", "rrun", "leaving", "--timeout=60s")


def coordinator(kubectl: Kubectl, run: str, scratch: Path) -> Kubectl:
    """kubectl as a run's coordinator, with the right to patch the status of any run."""
    account = f"{run}-coordinator"
    group = "rbac.authorization.k8s.io"
    rule = {"apiGroups": ["rollout.dev"], "resources": ["rolloutruns", "rolloutruns/status"]}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}},
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": {"name": account},
            "rules": [rule | {"verbs": ["get", "patch"]}],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": account},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "default"}],
        },
    )
    document = yaml.safe_load(kubectl.kubeconfig.read_text())
    token = kubectl("create", "token", account).strip()
    document["users"] = [
        {"name": one["name"], "user": {"token": token}} for one in document["users"]
    ]
    path = scratch / account
    path.write_text(json.dumps(document))
    return replace(kubectl, kubeconfig=path)


def patch_status(kubectl: Kubectl, run: str, status: dict[str, Any]) -> str:
    """What the API server says; empty when it takes it."""
    patch = json.dumps({"status": status})
    words = ("patch", "rrun", run, "--subresource=status", "--type=merge", "-p", patch)
    answer = kubectl.attempt(*words)
    return answer.stderr if answer.returncode else ""


def test_a_coordinator_writes_the_progress_of_its_own_run_only(
    kubectl: Kubectl, open_door: None, tmp_path: Path
):
    for name in ("mine", "other"):
        kubectl.apply(build_run(name))
    before = {"attempt": 1, "progress": {"step": 1}}
    assert patch_status(kubectl, "mine", before) == ""
    me = coordinator(kubectl, "mine", tmp_path)

    assert patch_status(me, "mine", {"progress": {"step": 2, "rewardMean": "0.5"}}) == ""
    for forbidden in (
        {"attempt": 2},
        {"progress": {"step": 3}, "startTime": "2026-01-01T00:00:00Z"},
        {"attempt": None},
        {"conditions": []},
    ):
        assert "writes status.progress and nothing else" in patch_status(me, "mine", forbidden)
    assert "of its own run only" in patch_status(me, "other", {"progress": {"step": 9}})
    found = kubectl.get("rrun", "mine")["status"]
    assert (found["attempt"], found["progress"]["step"]) == (1, 2)
    kubectl("delete", "rrun", "mine", "other")


def test_the_lease_has_a_flow_of_its_own(installed: Path, kubectl: Kubectl):
    found = kubectl.get("flowschema", "rollout-lease")
    dangling = {c["type"]: c["status"] for c in found["status"]["conditions"]}["Dangling"]
    assert dangling == "False"


def trusting(inside: Kubectl, bundle: str) -> dict[str, Any]:
    """The configuration as the rotation writes it: names and bundles."""
    hooks = inside.get("validatingwebhookconfiguration", CONFIGURATION)["webhooks"]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION},
        "webhooks": [{"name": one["name"], "clientConfig": {"caBundle": bundle}} for one in hooks],
    }


def test_an_upgrade_keeps_what_the_rotation_wrote(installed: Path, inside: Kubectl):
    bundle = base64.b64encode(new_authority(datetime.now(UTC)).certificate_pem).decode()
    apply = ("apply", "--server-side", "--field-manager=rollout-certificates", "-f", "-")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "rollout-webhook-tls", "namespace": charts.NAMESPACE},
        "data": {"tls.crt": bundle},
    }
    inside(*apply, stdin=json.dumps(secret))
    inside(*apply, stdin=json.dumps(trusting(inside, bundle)))

    for seconds in (3, 4):
        values = ("--values", str(installed), "--set", f"webhook.timeoutSeconds={seconds}")
        helm(inside, "upgrade", "rollout", str(charts.CHART), *values)
        helm(inside, "upgrade", "rollout-crds", str(charts.CRDS_CHART))

    assert inside.get("secret", "rollout-webhook-tls")["data"] == {"tls.crt": bundle}
    found = inside.get("validatingwebhookconfiguration", CONFIGURATION)["webhooks"]
    assert {one["clientConfig"]["caBundle"] for one in found} == {bundle}
    assert {one["timeoutSeconds"] for one in found} == {4}


def test_a_downgrade_and_the_upgrade_back_leave_runs_alone(
    installed: Path, inside: Kubectl, kubectl: Kubectl, open_door: None, tmp_path: Path
):
    with or_skip():
        before_these = releases.previous(tmp_path)
    kubectl.apply(build_run("living"))
    assert patch_status(kubectl, "living", {"attempt": 1, "observedGeneration": 1}) == ""
    before = kubectl.get("rrun", "living")["metadata"]

    for folder in (before_these / "charts", charts.CHART.parent):
        helm(inside, "upgrade", "rollout-crds", str(folder / "rollout-crds"))
        helm(inside, "upgrade", "rollout", str(folder / "rollout"), "--values", str(installed))

    after = kubectl.get("rrun", "living")["metadata"]
    for field in ("uid", "generation", "resourceVersion"):
        assert after[field] == before[field], field
    kubectl("delete", "rrun", "living")


def test_uninstalling_leaves_the_kinds_and_the_runs(
    installed: Path, kubectl: Kubectl, inside: Kubectl, open_door: None
):
    kubectl.apply(build_run("stays"))
    uid = kubectl.get("rrun", "stays")["metadata"]["uid"]
    helm(inside, "uninstall", "rollout", "--wait")
    helm(inside, "uninstall", "rollout-crds")

    assert kubectl.get("rrun", "stays")["metadata"]["uid"] == uid
    assert len(kubectl.get("crd")["items"]) == 6
    left = kubectl("get", "validatingwebhookconfiguration,clusterrole", "-o", "name")
    assert "rollout" not in left

    helm(inside, "install", "rollout-crds", str(charts.CRDS_CHART), "--take-ownership")
    helm(inside, "install", "rollout", str(charts.CHART))
    assert kubectl.get("rrun", "stays")["metadata"]["uid"] == uid
