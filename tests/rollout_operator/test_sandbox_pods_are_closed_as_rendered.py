"""Sandbox pods as the operator renders them: what a pod must not have, and who is let in, for every runtime that may make them."""

from __future__ import annotations

import json

import pytest
from worlds import SPEC, build_inputs

from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.run.attempt import build_children
from rollout_operator.run.render.order import build_order
from rollout_operator.run.render.pods import build_template

TOOLS = {"builtin": {"name": "arithmetic"}, "tools": ["python_exec"]}
SANDBOXED = {**SPEC, "train": {**SPEC["train"], "environment": TOOLS}}
RUNTIMES = {
    "users": {"userNamespaces": True},
    "class": {"runtimeClassName": "gvisor", "image": "python:3.12", "memory": "2Gi", "cpu": "500m"},
    "both": {
        "runtimeClassName": "kata",
        "userNamespaces": True,
        "nodeSelector": {"pool": "boxes"},
        "tolerations": [{"key": "boxes", "operator": "Exists"}],
    },
}


def order(spec=SANDBOXED, **sandbox):
    runtime = RuntimeSpec.model_validate(
        {"images": {"worker": "w:1", "pullPolicy": "Never"}, "sandbox": sandbox or None}
    )
    return build_order(build_inputs(spec, runtime)).sandboxes


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_pod_has_nothing_that_it_does_not_need(name):
    sandbox = RUNTIMES[name]
    found = order(**sandbox)
    pod, meta = found.template["spec"], found.template["metadata"]
    assert set(meta["labels"]) & {"rollout.dev/run", "rollout.dev/run-uid"} == set()
    assert meta["labels"]["rollout.dev/sandbox-of"] == "uid-0001"
    assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
    assert not pod.keys() & {"serviceAccountName", "hostNetwork", "hostPID", "hostIPC", "nodeName"}
    assert pod["restartPolicy"] == "Never" and pod["activeDeadlineSeconds"] == 7200
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod.get("hostUsers") is (False if sandbox.get("userNamespaces") else None)
    assert pod.get("runtimeClassName") == sandbox.get("runtimeClassName")
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert container["image"] == sandbox.get("image", "w:1")
    assert container["resources"]["limits"].keys() == {"cpu", "memory"}
    assert not container.keys() & {"env", "envFrom", "command", "ports"}, "the broker says those"
    for volume in pod["volumes"]:
        assert volume["emptyDir"].keys() == {"medium", "sizeLimit"}
    assert {one["mountPath"] for one in container["volumeMounts"]} == {"/box", "/tmp", "/dev/shm"}


def test_nothing_goes_out_of_a_pod_and_only_the_runs_actors_come_in():
    runtime = RuntimeSpec.model_validate({"sandbox": {"userNamespaces": True}})
    inputs = build_inputs(SANDBOXED, runtime)
    policies = {
        one["metadata"]["name"]: one["spec"]
        for one in build_children(inputs, "run-0123456789")
        if one["kind"] == "NetworkPolicy"
    }
    closed = policies["run-sandboxes"]
    assert closed["podSelector"] == {"matchLabels": {"rollout.dev/sandbox-of": "uid-0001"}}
    assert closed["policyTypes"] == ["Ingress", "Egress"] and "egress" not in closed
    [rule] = closed["ingress"]
    assert rule["from"] == [{"podSelector": policies["run-actors"]["podSelector"]}]
    labels = build_order(inputs).sandboxes.template["metadata"]["labels"]
    for name in ("run-coordinator", "run-learner", "run-actors"):
        wanted = policies[name]["podSelector"]["matchLabels"].items()
        assert not wanted <= labels.items(), "a sandbox is none of the run's workers"


def environment_of(**changes):
    return {**SPEC, "train": {**SPEC["train"], "environment": changes}}


HARBOR = {"module": "rollout.environments.adapters.harbor", "className": "Harbor"}
IMAGE = "registry.example/team/tasks:1"
OWN_LOOPS = {
    "agent": {"agent": {"command": ["python", "clerk.py"]}},
    "harbor": {"python": HARBOR},
}
IMAGED = {
    "agent": {"agent": {"command": ["python", "clerk.py"], "image": IMAGE}},
    "harbor": {"python": {**HARBOR, "parameters": [{"name": "image", "value": IMAGE}]}},
}


@pytest.mark.parametrize("kind", IMAGED)
def test_a_program_that_owns_its_loop_may_name_the_image_of_its_pods(kind):
    for environment, image in ((IMAGED[kind], IMAGE), (OWN_LOOPS[kind], "python:3.12")):
        made = order(environment_of(**environment), userNamespaces=True, image="python:3.12")
        [container] = made.template["spec"]["containers"]
        assert container["image"] == image


@pytest.mark.parametrize("kind", OWN_LOOPS)
def test_an_agents_pod_has_folders_for_its_judge_and_no_other_way_out(kind):
    spec = environment_of(**OWN_LOOPS[kind])
    pod = order(spec, userNamespaces=True).template["spec"]
    places = {one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert places == {"/box", "/tmp", "/dev/shm", "/tests", "/logs", "/app"}
    assert all(one["emptyDir"].keys() == {"medium", "sizeLimit"} for one in pod["volumes"])
    [policy] = network_policies(spec)
    assert "egress" not in policy and policy["policyTypes"] == ["Ingress", "Egress"]


def test_the_coordinator_comes_in_where_it_asks_servers_for_their_tools():
    server = {"name": "shelf", "command": ["python", "shelf.py"]}
    spec = environment_of(builtin={"name": "arithmetic"}, mcpServers=[server])
    [rule] = network_policies(spec)[0]["ingress"]
    roles = {one["podSelector"]["matchLabels"]["rollout.dev/role"] for one in rule["from"]}
    assert roles == {"actor", "coordinator"}


def network_policies(spec):
    runtime = RuntimeSpec.model_validate({"sandbox": {"userNamespaces": True}})
    children = build_children(build_inputs(spec, runtime), "run-0123456789")
    found = [one for one in children if one["kind"] == "NetworkPolicy"]
    return [one["spec"] for one in found if one["metadata"]["name"] == "run-sandboxes"]


def test_a_pod_is_counted_for_what_it_is_said_to_use():
    given = {"userNamespaces": True, "memory": "2Gi", "cpu": "2"}
    [container] = order(**given).template["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "2Gi"}
    little = {**given, "memoryRequest": "64Mi", "cpuRequest": "50m"}
    [container] = order(**little).template["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "50m", "memory": "64Mi"}
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}


def test_the_coordinator_is_told_which_pod_it_is_so_that_sandboxes_go_with_it():
    template = build_template(build_inputs(SANDBOXED), "coordinator", "run-0123456789")
    paths = {
        one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"]
        for one in template["spec"]["containers"][0]["env"]
        if "fieldRef" in one.get("valueFrom", {})
    }
    assert paths["ROLLOUT_POD_NAME"] == "metadata.name"
    assert paths["ROLLOUT_POD_UID"] == "metadata.uid"


def test_a_run_that_runs_nothing_of_the_policys_has_no_sandbox_pods():
    assert order(SPEC, userNamespaces=True) is None
    assert order() is None
    assert json.loads(build_order(build_inputs(SPEC)).model_dump_json())["sandboxes"] is None
