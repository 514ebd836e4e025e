"""With the rights of the table and no other a run lives its whole life, and every right is needed."""

import json
from contextlib import suppress
from functools import partial

import pytest
from operators import eventually, operating
from stage import World

from cluster.control.ports import find_free_port
from faults.proxy import running
from rollout_operator.rbac import RULES
from runs import build_run

SPOILED = (
    "service/arithmetic-learner",
    "serviceaccount/arithmetic-actor",
    "statefulset/arithmetic-actors",
    "role/arithmetic-coordinator",
    "rolebinding/arithmetic-coordinator",
    "networkpolicy/arithmetic-actors",
    "poddisruptionbudget/arithmetic-actors",
    "configmap/arithmetic-keys",
)
CODE = {"configMap": {"name": "mine"}}
ENDS = {"ttlSecondsAfterFinished": 0, "ttlAction": "DeleteRun"}
ELSEWHERE = {"kueue.x-k8s.io", "scheduling.k8s.io"}
"""Used where Kueue is: e2e/kueue asks the same of these."""
UNSEEN = {
    ("rolloutruns/finalizers", "update"),
    ("serviceaccounts/token", "create"),
    ("leases", "create"),
    ("leases", "get"),
    ("leases", "update"),
}
"""Checked by the API server without a call; needs a coordinator; the Lease is another test's."""


def grant(kubectl, namespace):
    rules = [
        {"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs)}
        for rule in RULES
    ]
    name = f"operator-{namespace}"
    subject = {"kind": "ServiceAccount", "name": "rollout-operator", "namespace": namespace}
    api = "rbac.authorization.k8s.io"
    role = {"apiGroup": api, "kind": "ClusterRole", "name": name}
    version = f"{api}/v1"
    meta = {"name": name}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "rollout-operator"}},
        {"apiVersion": version, "kind": "ClusterRole", "metadata": meta, "rules": rules},
        {
            "apiVersion": version,
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "roleRef": role,
            "subjects": [subject],
        },
    )
    return kubectl("create", "token", "rollout-operator").strip()


def used(records):
    """(resource, verb) of every call; an apply is a patch, and a create where nothing was."""
    pairs = set()
    for record in records:
        call = record.call
        if call.resource:
            name = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
            verbs = {"patch", "create"} if call.verb == "apply" else {call.verb}
            pairs |= {(name, verb) for verb in verbs}
    return pairs


def find_unused(proxy):
    return granted() - UNSEEN - used(proxy.records())


def granted():
    return {
        (resource, verb)
        for rule in RULES
        for resource in rule.resources
        for verb in rule.verbs
        if resource != "podmonitors" and rule.group not in ELSEWHERE
    }


@pytest.mark.process
def test_a_whole_life_uses_every_right_and_is_refused_nothing(bare, puppets, tmp_path):
    path = tmp_path / "kubeconfig"
    with running(bare.kubeconfig) as proxy:
        path.write_text(proxy.kubeconfig(token=grant(bare, bare.namespace)))
        namespace = {"ROLLOUT_OPERATOR_NAMESPACE": bare.namespace}
        for part in (begin, live):
            with operating(path, find_free_port(), tmp_path / "log", **namespace) as operator:
                part(World(kubectl=bare, puppets=puppets, operator=operator))
        unused = partial(find_unused, proxy)
        with suppress(AssertionError):
            eventually(lambda: not unused(), "some rights were not used", seconds=20)
        assert unused() == set()
        refused = [one.call.path for one in proxy.records() if is_lacking(one, bare.namespace)]
        calls = used(proxy.records())
    assert refused == []
    assert {pair for pair in calls - granted() if pair[1] != "create"} == set()


def is_lacking(record, namespace):
    """Refused for a right; in another test's namespace it may be that the namespace is going."""
    return record.status == 403 and record.call.namespace in {"", namespace}


def begin(world):
    head = {"apiVersion": "rollout.dev/v1alpha1", "metadata": {"name": "x"}}
    own = f"x-{world.kubectl.namespace}"
    world.kubectl.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}},
        build_run(spec={"limits": ENDS, "code": CODE}),
        {**head, "kind": "RolloutRuntime", "spec": {}},
        {**head, "kind": "RolloutSnapshot", "spec": {"run": {"name": "a"}}},
        {**head, "kind": "RolloutEndpoint", "spec": {"model": {"uri": "hf://a/b"}}},
        {**head, "kind": "ClusterRolloutRuntime", "metadata": {"name": own}, "spec": {}},
    )
    world.wait_for("Ready", "True", "Running")
    ends = "rollout.dev/not-after=2020-01-01T00:00:00Z"
    world.kubectl("annotate", "secret", "arithmetic-tls", ends, "--overwrite")


def live(world):
    eventually(lambda: not_after(world) > "2026", "the certificate was not renewed")
    for child in SPOILED:
        world.kubectl("label", child, "app.kubernetes.io/part-of=else", "--overwrite")
        eventually(
            lambda child=child: part_of(world, child) == "rollout", f"{child} stayed spoiled"
        )
    world.puppets.fail("arithmetic-learner-0", "learner", 1)
    eventually(lambda: world.run()["status"]["learner"]["restarts"] == 1, "no group restart")
    world.wait_for("Ready", "True", "Running")
    world.succeed()
    kinds = "statefulsets,services,secrets,roles"
    eventually(
        lambda: not world.kubectl.get(kinds, "-l", "rollout.dev/run=arithmetic")["items"],
        "children outlived their time",
    )
    eventually(lambda: not world.kubectl.get("rolloutruns")["items"], "the run outlived its time")


def not_after(world):
    found = world.kubectl.get("secret", "arithmetic-tls")
    return found["metadata"]["annotations"]["rollout.dev/not-after"]


def part_of(world, child):
    found = json.loads(world.kubectl("get", child, "-o", "json"))
    return found["metadata"]["labels"].get("app.kubernetes.io/part-of")
