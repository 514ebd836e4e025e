"""Somebody with the chart's role `<release>-reader` runs what reads a run in its coordinator's pod, and nothing else in any pod.

Nothing runs in this cluster: who is let through is told that the pod has no node.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from people import Person

from charts import objects, render
from cluster.providers import Cluster
from waiting import wait_until

pytestmark = pytest.mark.control_plane

PLACE, ROLE = "readers", "rollout-reader"
COORDINATOR = "arithmetic-coordinator-0"
PAGE = ("rollout", "debug", "page", "/var/lib/rollout", "samples", "--question", '{"page": 1}')
STEP = ("rollout", "runs", "samples", "/var/lib/rollout", "--step", "3", "--output", "json")
LET_THROUGH, REFUSED = 400, 403


def bind(kind: str, role: str, user: str) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": user, "namespace": PLACE},
        "roleRef": {"apiGroup": group, "kind": kind, "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }


def build_pod(name: str) -> dict[str, Any]:
    containers = [{"name": one, "image": "registry.invalid/a"} for one in ("coordinator", "rows")]
    spec = {"containers": containers, "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": PLACE}} | {
        "spec": spec
    }


TENDER = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "tender", "namespace": PLACE},
    "rules": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]}],
}
"""Of somebody who looks after pods of all kinds, and is no business of rollout's."""


@pytest.fixture(scope="module")
def person(cluster: Cluster) -> Iterator[Any]:
    """Users of a namespace with two pods, and the role and the policy of the chart as it renders them."""
    kubectl = replace(cluster.kubectl, namespace="")
    for one in objects(render()):
        if one["metadata"]["name"] == ROLE:
            kubectl.apply(one)
    kubectl("create", "namespace", PLACE)
    kubectl.apply(TENDER)
    kubectl.apply(bind("ClusterRole", ROLE, "reader"))
    kubectl.apply(bind("ClusterRole", "edit", "editor"))
    kubectl.apply(bind("Role", "tender", "tender"))
    account = ("serviceaccount", "default", "--namespace", PLACE, "--ignore-not-found")
    wait_until(lambda: kubectl("get", *account), "the namespace has no account")
    for name in (COORDINATOR, "database-0"):
        kubectl.apply(build_pod(name))

    def become(user: str) -> Person:
        return Person(
            kubeconfig=kubectl.kubeconfig,
            user=user,
            groups=("system:authenticated",),
            namespace=PLACE,
        )

    wait_until(lambda: run(become("reader"), "ls").status == REFUSED, "the policy does not hold")
    yield become
    kubectl("delete", "namespace", PLACE, "--wait=false")


def run(who: Person, *command: str, pod: str = COORDINATOR, method: str = "POST", **options: str):
    said = {"container": "coordinator", "stdout": "true", "stderr": "true", **options}
    query = urlencode([*said.items(), *(("command", one) for one in command)])
    return who.send(method, f"/api/v1/namespaces/{PLACE}/pods/{pod}/exec?{query}")


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("command", [PAGE, STEP], ids=" ".join)
def test_a_reader_reads_a_run(person, command, method):
    answer = run(person("reader"), *command, method=method)
    assert answer.status == LET_THROUGH, answer.words


REFUSALS = {
    "another program": {"command": ("sh", "-c", "id")},
    "nothing": {"command": ()},
    "another command of ours": {"command": ("rollout", "runs", "report", "/var/lib/rollout")},
    "another folder": {"command": ("rollout", "debug", "page", "/", "samples")},
    "another service": {"command": (*STEP, "--service", "/tmp")},
    "another cluster": {"command": (*STEP, "--context=other")},
    "another pod": {"command": PAGE, "pod": "database-0"},
    "another container": {"command": PAGE, "container": "rows"},
    "the first container": {"command": PAGE, "container": ""},
    "a terminal": {"command": PAGE, "tty": "true"},
    "something typed": {"command": PAGE, "stdin": "true"},
}


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("what", REFUSALS)
def test_a_reader_gets_into_nothing_else(person, what, method):
    options = dict(REFUSALS[what])
    answer = run(person("reader"), *options.pop("command"), method=method, **options)
    assert answer.status == REFUSED
    assert f"ValidatingAdmissionPolicy '{ROLE}'" in answer.words


@pytest.mark.parametrize("verb", ["attach", "portforward"])
def test_a_reader_has_no_other_way_in(person, verb):
    answer = person("reader").send("POST", f"/api/v1/namespaces/{PLACE}/pods/{COORDINATOR}/{verb}")
    assert answer.status == REFUSED


@pytest.mark.parametrize("user", ["editor", "tender"])
def test_others_are_not_held(person, user):
    answer = run(person(user), "sh", pod="database-0")
    assert answer.status == LET_THROUGH, answer.words
