"""Namespaced mode: a Role and no cluster-wide right is enough, and other namespaces are not seen."""

import pytest
from operators import eventually, operating
from stage import World

from cluster.control.ports import find_free_port
from faults.proxy import running
from rollout_operator.rbac import RULES
from runs import build_run

API = "rbac.authorization.k8s.io"
RUNTIME = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRuntime",
    "metadata": {"name": "default"},
    "spec": {},
}
ENDS = {"ttlSecondsAfterFinished": 0, "ttlAction": "DeleteRun"}


def grant(kubectl):
    rules = [
        {"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs)}
        for rule in RULES
        if rule.scope != "cluster"
    ]
    meta = {"name": "operator"}
    account = {"kind": "ServiceAccount", "name": "operator", "namespace": kubectl.namespace}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": f"{API}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{API}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": API, "kind": "Role", "name": "operator"},
            "subjects": [account],
        },
    )
    return kubectl("create", "token", "operator").strip()


@pytest.mark.process
def test_a_role_is_enough(bare, puppets, tmp_path):
    path = tmp_path / "kubeconfig"
    settings = {
        "ROLLOUT_NAMESPACES": bare.namespace,
        "ROLLOUT_OPERATOR_NAMESPACE": bare.namespace,
        "ROLLOUT_LEADER_ELECTION": "true",
    }
    with running(bare.kubeconfig) as proxy:
        path.write_text(proxy.kubeconfig(token=grant(bare)))
        bare.apply(RUNTIME, build_run(spec={"limits": ENDS}))
        with operating(path, find_free_port(), tmp_path / "log", **settings) as operator:
            world = World(kubectl=bare, puppets=puppets, operator=operator)
            world.wait_for("Ready", "True", "Running")
            world.succeed()
            eventually(lambda: not bare.get("rolloutruns")["items"], "the run outlived its time")
        assert [one.call.path for one in proxy.records() if one.status == 403] == []
        seen = {one.call.namespace for one in proxy.records() if one.call.resource}
    assert seen == {bare.namespace}
