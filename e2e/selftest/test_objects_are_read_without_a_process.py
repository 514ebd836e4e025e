"""What tests poll is read over a kept connection: the very objects that kubectl prints, and no kubectl for each look."""

import json
from dataclasses import replace

import pytest

from cluster.errors import ClusterError
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster
from objects import build_pod, build_service, build_stateful_set
from waiting import wait_until

pytestmark = pytest.mark.control_plane

QUESTIONS = [
    ("configmap", "one"),
    ("cm", "one"),
    ("configmaps",),
    ("configmaps", "-l", "side=left"),
    ("configmaps", "--selector=side in (left,right)"),
    ("configmaps", "--field-selector=metadata.name=two"),
    ("configmaps", "one", "--show-managed-fields"),
    ("statefulsets,services,configmaps", "-l", "side"),
    ("sts", "waits"),
    ("statefulset.apps", "waits"),
    ("namespaces", "default"),
    ("flowschemas", "catch-all"),
    ("serviceaccount", "default", "-n", "kube-system"),
    ("configmaps", "one", "two"),
    ("configmap/one",),
    ("pods", "-A", "--field-selector=metadata.namespace=nowhere"),
]


def build_config(name: str, side: str) -> dict:
    meta = {"name": name, "labels": {"side": side}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "b"}}


def seen(live: dict) -> bool:
    return "observedGeneration" in live.get("status", {})


def names_of(found: dict) -> set[str]:
    return {one["metadata"]["name"] for one in found["items"]}


@pytest.fixture
def furnished(fake: Kubectl) -> Kubectl:
    """A namespace with objects whose controllers have nothing more to write."""
    waits = build_stateful_set("waits", 0, build_pod("waits"))
    waits["metadata"]["labels"] = {"side": "none"}
    fake.apply(build_config("one", "left"), build_config("two", "right"), waits)
    fake.apply(build_service("serves", "nobody", 80))
    wait_until(lambda: seen(fake.get("statefulset", "waits")), "its controller has seen waits")
    wait_until(
        lambda: "kube-root-ca.crt" in names_of(fake.get("configmaps")), "the namespace is furnished"
    )
    return fake


def test_what_is_read_is_what_kubectl_prints(furnished: Kubectl):
    for question in QUESTIONS:
        printed = json.loads(furnished("get", *question, "-o", "json"))
        printed.pop("metadata") if printed["kind"] == "List" else None
        read = furnished.get(*question)
        read.pop("metadata") if read["kind"] == "List" and "metadata" in read else None
        assert read == printed, question


def test_a_simple_question_starts_no_process(furnished: Kubectl):
    nobody = replace(furnished, binary="/nonexistent/kubectl")
    assert nobody.get("configmap", "one")["data"] == {"a": "b"}
    assert len(nobody.get("configmaps", "-l", "side")["items"]) == 2
    assert nobody.raw("/readyz") == "ok"


def managers_of(live: dict) -> list[tuple[str, str, dict]]:
    found = live["metadata"]["managedFields"]
    return [(one["manager"], one["operation"], one["fieldsV1"]) for one in found]


def test_what_is_changed_without_a_process_is_changed_as_kubectl_does(furnished: Kubectl):
    patch = {"data": {"a": None, "new": "c"}}
    furnished("patch", "configmap", "one", "--type=merge", "-p", json.dumps(patch))
    nobody = replace(furnished, binary="/nonexistent/kubectl")
    nobody.merge("cm", "two", patch)
    one, two = (nobody.get("configmap", name, "--show-managed-fields") for name in ("one", "two"))
    assert one["data"] == two["data"] == {"new": "c"}
    assert managers_of(one) == managers_of(two)
    nobody.delete_all("configmaps")
    wait_until(lambda: not {"one", "two"} & names_of(nobody.get("configmaps")), "both are gone")


def test_what_is_not_there_is_said_in_the_servers_words(fake: Kubectl):
    words = r'Error from server \(NotFound\): configmaps "three" not found'
    with pytest.raises(ClusterError, match=words):
        fake.get("configmap", "three")
    with pytest.raises(ClusterError, match="the server doesn't have a resource type"):
        fake.get("nothings")


def test_a_kind_that_was_defined_since_the_last_look_is_found(fake: Kubectl):
    assert fake.get("configmaps")["items"]
    names = {"kind": "Late", "plural": "lates", "singular": "late", "shortNames": ["lt"]}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    fake.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "lates.test.rollout.dev"},
            "spec": {
                "group": "test.rollout.dev",
                "scope": "Namespaced",
                "names": names,
                "versions": [version],
            },
        }
    )
    try:
        fake.wait("--for=condition=Established", "crd/lates.test.rollout.dev")
        assert fake.get("lt")["items"] == []
    finally:
        fake("delete", "crd", "lates.test.rollout.dev")


def test_a_server_that_went_and_came_back_is_asked_again(
    local_cluster: LocalCluster, fake: Kubectl
):
    before = fake.get("serviceaccount", "default")
    local_cluster.control_plane.kill_api_server()
    try:
        with pytest.raises(ClusterError, match="serviceaccounts/default"):
            fake.get("serviceaccount", "default")
    finally:
        local_cluster.control_plane.start_api_server()
    assert fake.get("serviceaccount", "default") == before
