"""A mistake of the operator is stopped by the API server: the chart's policy on its own user, which may do everything else."""

import sys
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "rollout_operator"))

from worlds import PLATFORM, RING, SPEC, build_inputs

from rollout_api import names
from rollout_api.v1alpha1.inference.endpoint import EndpointSpec, EndpointStatus
from rollout_api.v1alpha1.inference.scaling import ScaledByHpa, Scaling
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.v1alpha1.storage import Storage
from rollout_operator.endpoint.history import build_history
from rollout_operator.endpoint.inputs import ServerInputs
from rollout_operator.endpoint.model import EndpointSeen, ServedModel
from rollout_operator.endpoint.render.children import (
    build_awake,
    build_deployment,
    build_revision,
    build_service,
    build_surroundings,
)
from rollout_operator.endpoint.render.holder import build_holder
from rollout_operator.endpoint.render.traffic import build_traffic
from rollout_operator.run.attempt import build_keys, render_record, sign_record
from rollout_operator.run.certificate import issue
from rollout_operator.run.record_keys import build_secret as build_key
from rollout_operator.run.render.inputs import plain_meta
from rollout_operator.run.tls import build_secret
from rollout_operator.signing import SECRET_NAME
from rollout_operator.snapshot.errand import build_account, build_job
from rollout_operator.snapshot.purge.job import PurgeInputs, build_purge

pytestmark = pytest.mark.control_plane
OPERATOR = "system:serviceaccount:rollout-system:rollout-operator"
SERVED = {
    "model": {"uri": "file:///models/a"},
    "engine": {"vllm": {}},
    "apiKeys": [{"name": "ann", "secretKeyRef": {"name": "keys", "key": "ann"}}],
    "tls": {"secretRef": {"name": "chat-tls"}},
}
CODE = {"python": {"module": "mine", "className": "Mine"}}
PLUGIN = {"container": {"name": "polite", "image": f"registry.example/polite@sha256:{'a' * 64}"}}
VLLM = {
    **SPEC,
    "actors": {"engine": {"vllm": {}}},
    "train": {**SPEC["train"], "environment": CODE, "rewards": [{"plugin": PLUGIN}]},
    "code": {"configMap": {"name": "code"}},
}


@pytest.fixture(scope="module")
def held(installation):
    """The policy, on a user who may do everything but for it."""
    kubectl = replace(installation.kubectl, namespace="")
    user = {"kind": "User", "name": OPERATOR, "apiGroup": "rbac.authorization.k8s.io"}
    admin = {"apiGroup": user["apiGroup"], "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "policy-test"},
        "roleRef": admin,
        "subjects": [user],
    }
    kubectl.apply(binding)
    kubectl("create", "namespace", "ns")
    yield installation.account("rollout-operator")
    kubectl("delete", "clusterrolebinding", "policy-test")
    kubectl("delete", "namespace", "ns", "--wait=false")


def send(who, manifest):
    """What the API server says; nothing is kept."""
    return who.create(manifest, manifest["metadata"]["namespace"], dryRun="All")


def children():
    inputs = build_inputs(VLLM, platform=replace(PLATFORM, pod_monitors=False))
    record = sign_record(render_record(inputs), RING)
    return [record.config_map, *record.children]


def servers():
    """An endpoint's, by kind, and whoever holds its requests."""
    inputs = ServerInputs(
        name="chat",
        namespace="ns",
        uid="uid-0001",
        spec=EndpointSpec.model_validate(SERVED),
        model=ServedModel(**SERVED["model"]),
        runtime=RuntimeSpec(),
        platform=PLATFORM,
    )
    revision = build_revision(inputs)
    seen = EndpointSeen(
        name="chat",
        namespace="ns",
        uid="uid-0001",
        generation=1,
        spec=inputs.spec,
        status=EndpointStatus(),
    )
    made = [
        build_history(inputs, revision.name, seen),
        build_deployment(inputs, revision, 1),
        build_service(inputs, revision.name, tls=True),
    ]
    kinds = {one["kind"]: one for one in (*build_surroundings(inputs), *made)}
    held = {"holder": build_holder(inputs), "awake": build_awake(inputs, revision.name)}
    return kinds | scalers(inputs) | held


def scalers(inputs):
    """What of its traffic the cluster has a kind for."""
    spec = inputs.spec.model_copy(update={"scaling": Scaling(max_replicas=2, hpa=ScaledByHpa())})
    return {one["kind"]: one for one in build_traffic(replace(inputs, spec=spec))}


def of_every_run(now):
    seen = type("Seen", (), {"name": "run", "namespace": "ns", "uid": "uid-0001"})()
    meta = plain_meta("run", "ns", "uid-0001", names.keys_name("run"))
    yield build_secret(seen, issue("run", "ns", now))
    yield build_keys(meta, "{}", "run-tls", "uid-0002")
    yield build_key("rollout-system", b"k" * 32)


def test_everything_that_a_run_is_made_of_passes(held):

    for manifest in (*children(), *of_every_run(datetime.now(UTC))):
        answer = send(held, manifest)
        there = answer.status == 409 and manifest["metadata"]["name"] == SECRET_NAME
        assert answer.done or there, (
            answer.words
        )  # what is there is said after the policy was asked


def test_everything_that_an_endpoint_is_made_of_passes(held):
    for manifest in servers().values():
        answer = send(held, manifest)
        assert answer.done, answer.words


def one(kind):
    name = {"StatefulSet": "run-actors"}.get(kind)
    found = (child for child in children() if child["kind"] == kind)
    return deepcopy(next(child for child in found if name in {None, child["metadata"]["name"]}))


def pod(child):
    return child["spec"]["template"]["spec"]


def as_rows(child, *mounted, user=10002):
    """Have the first of the further containers be the one for the author's data code."""
    rows = pod(child)["initContainers"][0]
    rows["name"] = "rows"
    rows["securityContext"]["runAsUser"] = user
    rows["volumeMounts"] += [{"name": name, "mountPath": f"/{name}"} for name in mounted]


def as_plugin(child, **changes):
    """Have the container of the run's plugin be another one."""
    found = pod(child)["initContainers"][-1]
    assert found["name"] == "plugin-polite"
    found.update(changes)


LEDGER = {
    "metadata": {"name": "ledger"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    },
}
SECRET_KEY = {"secretKeyRef": {"name": "mine", "key": "k"}}
EVERYTHING = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
ROLE = {"kind": "Role", "rules": EVERYTHING}
WISHES = {
    "an object of nobody": ("Service", lambda one: one["metadata"].pop("ownerReferences")),
    "another name": ("Service", lambda one: one["metadata"].update(name="kubernetes")),
    "another run's account": ("ServiceAccount", lambda one: one["metadata"].update(name="b-actor")),
    "a mounted token": (
        "ServiceAccount",
        lambda one: one.update(automountServiceAccountToken=True),
    ),
    "a secret of another name": ("ConfigMap", lambda one: one["metadata"].update(name="run-env")),
    "an address outside": ("Service", lambda one: one["spec"].update(externalIPs=["10.0.0.1"])),
    "a role": (
        "RoleBinding",
        lambda one: (one.update(ROLE), one.pop("subjects"), one.pop("roleRef")),
    ),
    "another cluster role": ("RoleBinding", lambda one: one["roleRef"].update(name="admin")),
    "me": ("RoleBinding", lambda one: one["subjects"][0].update(name="default")),
    "processes of the node": ("StatefulSet", lambda one: pod(one).update(hostPID=True)),
    "memory of the node": ("StatefulSet", lambda one: pod(one).update(hostIPC=True)),
    "network of the node": ("StatefulSet", lambda one: pod(one).update(hostNetwork=True)),
    "another account": ("StatefulSet", lambda one: pod(one).update(serviceAccountName="default")),
    "a folder of the node": (
        "StatefulSet",
        lambda one: pod(one)["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
    ),
    "privilege": (
        "StatefulSet",
        lambda one: pod(one)["initContainers"][0].update(securityContext={"privileged": True}),
    ),
    "processes of other containers": (
        "StatefulSet",
        lambda one: pod(one).update(shareProcessNamespace=True),
    ),
    "keys for data code": ("StatefulSet", lambda one: as_rows(one, "ca")),
    "the ledger for data code": (
        "StatefulSet",
        lambda one: (as_rows(one, "ledger"), one["spec"].update(volumeClaimTemplates=[LEDGER])),
    ),
    "a plugin by tag": ("StatefulSet", lambda one: as_plugin(one, image="registry.example/p:1")),
    "the actor's user for a plugin": (
        "StatefulSet",
        lambda one: pod(one)["initContainers"][-1]["securityContext"].update(runAsUser=10001),
    ),
    "a token for a plugin": (
        "StatefulSet",
        lambda one: as_plugin(one, volumeMounts=[{"name": "token", "mountPath": "/token"}]),
    ),
    "a Secret for a plugin": (
        "StatefulSet",
        lambda one: as_plugin(one, envFrom=[{"secretRef": {"name": "mine"}}]),
    ),
    "a Secret's variable for a plugin": (
        "StatefulSet",
        lambda one: as_plugin(one, env=[{"name": "A", "valueFrom": SECRET_KEY}]),
    ),
    "the coordinator's user for data code": ("StatefulSet", lambda one: as_rows(one, user=10001)),
    "capabilities": (
        "StatefulSet",
        lambda one: pod(one)["containers"][0]["securityContext"]["capabilities"].update(
            add=["SYS_ADMIN"]
        ),
    ),
}


@pytest.mark.parametrize(("kind", "wish"), WISHES.values(), ids=WISHES.keys())
def test_the_operator_makes(held, kind, wish):
    manifest = one(kind)
    wish(manifest)
    answer = send(held, manifest)
    assert not answer.done
    assert "ValidatingAdmissionPolicy 'rollout-children'" in answer.words, answer.words


def purge(kind):
    """What purges a snapshot."""
    ask = PurgeInputs(
        name="best",
        namespace="ns",
        uid="uid-0009",
        run_name="run",
        run_uid="uid-0001",
        ledger="Gone",
        storage=Storage.model_validate({"uri": "s3://b/runs"}),
        runtime=RuntimeSpec(),
        platform=PLATFORM,
    )
    errand = build_purge(ask)
    made = {"Job": build_job(errand), "ServiceAccount": build_account(errand)}[kind]
    return deepcopy(made)


@pytest.mark.parametrize("name", ["purge-uid-0009", "adopt-uid-0009"])
@pytest.mark.parametrize("kind", ["Job", "ServiceAccount"])
def test_the_errands_of_a_snapshot_pass(held, kind, name):
    manifest = purge(kind)
    manifest["metadata"]["name"] = name
    if kind == "Job":
        pod(manifest)["serviceAccountName"] = name
    answer = send(held, manifest)
    assert answer.done, answer.words


RUN_OWNER = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun", "name": "run"}
PURGE_WISHES = {
    "a Job of nobody": ("Job", lambda one: one["metadata"].pop("ownerReferences")),
    "a Job of a run": (
        "Job",
        lambda one: one["metadata"].update(
            ownerReferences=[{**RUN_OWNER, "uid": "uid-0001", "controller": True}]
        ),
    ),
    "a Job of another snapshot": ("Job", lambda one: one["metadata"].update(name="purge-uid-1")),
    "a Job as another": ("Job", lambda one: pod(one).update(serviceAccountName="default")),
    "a Job on the node": ("Job", lambda one: pod(one).update(hostPID=True)),
    "a Job with the node's files": (
        "Job",
        lambda one: pod(one)["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
    ),
    "a Job with privilege": (
        "Job",
        lambda one: pod(one)["containers"][0].update(securityContext={"privileged": True}),
    ),
    "an account of another name": (
        "ServiceAccount",
        lambda one: one["metadata"].update(name="run-coordinator"),
    ),
    "an account with a token": (
        "ServiceAccount",
        lambda one: one.update(automountServiceAccountToken=True),
    ),
    "a ConfigMap for a snapshot": (
        "ServiceAccount",
        lambda one: one.update(kind="ConfigMap") or one.pop("automountServiceAccountToken"),
    ),
}


@pytest.mark.parametrize(("kind", "wish"), PURGE_WISHES.values(), ids=PURGE_WISHES.keys())
def test_the_operator_purges_with(held, kind, wish):
    manifest = purge(kind)
    wish(manifest)
    answer = send(held, manifest)
    assert not answer.done
    assert "ValidatingAdmissionPolicy 'rollout-children'" in answer.words, answer.words


OF_SERVERS = {
    "an address outside": ("Service", lambda one: one["spec"].update(externalIPs=["10.0.0.1"])),
    "a load balancer": ("Service", lambda one: one["spec"].update(type="LoadBalancer")),
    "a run's name": ("Service", lambda one: one["metadata"].update(name="chat-coordinator")),
    "another name": ("Deployment", lambda one: one["metadata"].update(name="chat-server")),
    "another's holder": ("holder", lambda one: one["metadata"].update(name="other-holder")),
    "a holder as the account of others": (
        "holder",
        lambda one: pod(one).update(serviceAccountName="default"),
    ),
    "a second address of a holder": (
        "awake",
        lambda one: one["metadata"].update(name="chat-holder"),
    ),
    "a mounted token": (
        "ServiceAccount",
        lambda one: one.update(automountServiceAccountToken=True),
    ),
    "another account": ("Deployment", lambda one: pod(one).update(serviceAccountName="default")),
    "a folder of the node": (
        "Deployment",
        lambda one: pod(one)["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
    ),
    "network of the node": ("Deployment", lambda one: pod(one).update(hostNetwork=True)),
    "privilege": (
        "Deployment",
        lambda one: pod(one)["initContainers"][0].update(securityContext={"privileged": True}),
    ),
}


@pytest.mark.parametrize(("kind", "wish"), OF_SERVERS.values(), ids=OF_SERVERS.keys())
def test_the_operator_makes_for_an_endpoint(held, kind, wish):
    manifest = servers()[kind]
    wish(manifest)
    answer = send(held, manifest)
    assert not answer.done
    assert "ValidatingAdmissionPolicy 'rollout-children'" in answer.words, answer.words


def test_a_run_has_no_deployment(held):
    manifest = servers()["Deployment"]
    manifest["metadata"]["ownerReferences"][0]["kind"] = "RolloutRun"
    assert "ValidatingAdmissionPolicy 'rollout-children'" in send(held, manifest).words


def test_nobody_else_is_held_to_that(installation, held):
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": "ns"},
    }
    assert send(installation.person(), manifest).done
