"""Whatever the code before it renders, nothing leaves for the API server that a run may not have."""

from copy import deepcopy
from dataclasses import replace

import pytest
from worlds import PLATFORM, SPEC, build_inputs

from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.errors import ChildRefused
from rollout_operator.run.attempt import build_children
from rollout_operator.run.permitted import Permit, build_allowances, check_permitted

VLLM = {**SPEC, "actors": {"engine": {"vllm": {}}}}
RUNTIME = RuntimeSpec.model_validate(
    {
        "modelCache": {"hostPath": {"path": "/models"}},
        "acceleratorClasses": [
            {"name": "a", "memory": "1Gi", "network": {"hostNetwork": True, "env": []}}
        ],
        "roles": {
            "actors": {
                "serviceAccountName": "actors",
                "volumes": [
                    {"name": "d", "mountPath": "/d", "hostPath": {"path": "/data"}},
                    {"name": "n", "mountPath": "/n", "nfs": {"server": "s", "path": "/x"}},
                    {"name": "c", "mountPath": "/c", "csi": {"driver": "d"}},
                ],
            }
        },
    }
)
WITH_DEVICES = {
    **SPEC,
    "actors": {"accelerator": {"className": "a"}},
    "learner": {"accelerator": {"className": "a"}},
}


def permit(runtime=None):
    allowances = build_allowances(runtime or RuntimeSpec())
    return Permit(run="run", namespace="ns", uid="uid-0001", allowances=allowances)


def children(spec=SPEC, runtime=None):
    inputs = build_inputs(spec, runtime, platform=replace(PLATFORM, pod_monitors=True))
    return build_children(inputs, "run-0123456789")


@pytest.mark.parametrize(("spec", "runtime"), [(SPEC, None), (VLLM, None), (WITH_DEVICES, RUNTIME)])
def test_everything_that_is_rendered_may_leave(spec, runtime):
    found = children(spec, runtime)
    for child in found:
        check_permitted(child, permit(runtime))
    assert len({child["kind"] for child in found}) == 7


def one(kind, runtime=None):
    spec = WITH_DEVICES if runtime else VLLM
    named = {"StatefulSet": "run-actors", "ServiceAccount": "run-coordinator"}.get(kind)
    return deepcopy(
        next(
            child
            for child in children(spec, runtime)
            if child["kind"] == kind and named in {None, child["metadata"]["name"]}
        )
    )


def pod(child):
    return child["spec"]["template"]["spec"]


def at(*path, value):
    def change(child):
        for name in path[:-1]:
            child = child[name]
        child[path[-1]] = value

    return change


def container(**changes):
    def change(child):
        pod(child)["containers"][-1] |= changes

    return change


POD = ("spec", "template", "spec")
WISHES = {
    "another namespace": ("RoleBinding", at("metadata", "namespace", value="kube-system")),
    "no namespace": ("Service", at("metadata", "namespace", value=None)),
    "another name": ("Service", at("metadata", "name", value="kubernetes")),
    "another run's name": ("ServiceAccount", at("metadata", "name", value="victim-coordinator")),
    "another owner": ("Service", at("metadata", "ownerReferences", value=[])),
    "a kind of the cluster": ("RoleBinding", at("kind", value="ClusterRoleBinding")),
    "a kind of another group": ("RoleBinding", at("apiVersion", value="evil.dev/v1")),
    "a role of my making": ("RoleBinding", at("kind", value="Role")),
    "another role": ("RoleBinding", at("roleRef", "name", value="admin")),
    "a role that lies in my namespace": ("RoleBinding", at("roleRef", "kind", value="Role")),
    "me": ("RoleBinding", at("subjects", value=[{"kind": "User", "name": "mallory"}])),
    "a mounted token": ("ServiceAccount", at("automountServiceAccountToken", value=True)),
    "an address outside": ("Service", at("spec", "externalIPs", value=["10.0.0.1"])),
    "processes of the node": ("StatefulSet", at(*POD, "hostPID", value=True)),
    "memory of the node": ("StatefulSet", at(*POD, "hostIPC", value=True)),
    "network of the node": ("StatefulSet", at(*POD, "hostNetwork", value=True)),
    "another account": ("StatefulSet", at(*POD, "serviceAccountName", value="admin")),
    "another role's account": (
        "StatefulSet",
        at(*POD, "serviceAccountName", value="run-coordinator"),
    ),
    "a folder of the node": (
        "StatefulSet",
        at(*POD, "volumes", value=[{"name": "h", "hostPath": {"path": "/"}}]),
    ),
    "a driver of my choice": (
        "StatefulSet",
        at(*POD, "volumes", value=[{"name": "h", "csi": {"driver": "mine"}}]),
    ),
    "privilege": ("StatefulSet", container(securityContext={"privileged": True})),
    "escalation": ("StatefulSet", container(securityContext={})),
    "capabilities": (
        "StatefulSet",
        container(
            securityContext={
                "allowPrivilegeEscalation": False,
                "capabilities": {"add": ["SYS_ADMIN"]},
            }
        ),
    ),
    "a port of the node": ("StatefulSet", container(ports=[{"hostPort": 22}])),
}


@pytest.mark.parametrize(("kind", "wish"), WISHES.values(), ids=WISHES.keys())
def test_i_get(kind, wish):
    child = one(kind)
    check_permitted(child, permit())
    wish(child)
    with pytest.raises(ChildRefused, match="it is not sent"):
        check_permitted(child, permit())


def test_another_folder_than_the_runtimes_is_refused():
    child = one("StatefulSet", RUNTIME)
    pod(child)["volumes"].append({"name": "h", "hostPath": {"path": "/models/../etc"}})
    with pytest.raises(ChildRefused, match="hostPath"):
        check_permitted(child, permit(RUNTIME))


def test_the_refusal_names_object_field_and_what_was_met():
    child = one("StatefulSet")
    pod(child)["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(ChildRefused) as caught:
        check_permitted(child, permit())
    for words in ("StatefulSet ns/run-actors", "containers[actor].securityContext", "privileged"):
        assert words in str(caught.value)
