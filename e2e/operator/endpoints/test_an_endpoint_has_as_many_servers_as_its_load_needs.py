"""Kubernetes' own autoscaler sets the number of an endpoint's servers; the operator and a file in Git take nothing of it back."""

import json

import pytest
from gauges import AGGREGATION, measuring
from operators import eventually, operating

from cluster.commands import Options
from cluster.control.ports import find_free_port
from cluster.local import Shape
from cluster.providers import open_cluster
from cluster.skips import or_skip
from namespaces import in_namespace
from runs import RUNTIME, install_crds

pytestmark = pytest.mark.process

FILE = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutEndpoint",
    "metadata": {"name": "chat"},
    "spec": {
        "model": {"uri": "rollout://tiny-adder"},
        "engine": {"embedded": {}},
        "scaling": {"maxReplicas": 4, "scaleDownSeconds": 0, "hpa": {}},
    },
}
"""As it would lie in Git: without ``replicas``."""
FULL, MOST, IDLE = 2.0, 100.0, 0.1
"""Loads, in servers: at a target of 0.8 these ask for 3, for all there may be, and for one."""


@pytest.fixture(scope="module")
def cluster():
    options = Options(api_server_flags=AGGREGATION)
    with or_skip(), open_cluster(Shape(fake_nodes=0, options=options)) as made:
        install_crds(made.kubectl)
        made.kubectl.apply(RUNTIME)
        yield made


@pytest.fixture
def bare(cluster):
    with in_namespace(cluster.kubectl) as mine:
        yield mine
        mine.attempt("delete", "rolloutendpoints", "--all", "--timeout=60s")


def put(kubectl, document):
    """As a tool for Git does."""
    apply = ("apply", "--server-side", "--field-manager=git", "-f", "-")
    kubectl(*apply, stdin=json.dumps(document))


def numbers(kubectl):
    found = kubectl.get("deployments")["items"]
    return sorted((one["spec"]["replicas"], one["status"].get("readyReplicas", 0)) for one in found)


def has(kubectl, count):
    eventually(
        lambda: numbers(kubectl) == [(count, count)],
        f"there are not {count} servers",
        seconds=180,
    )


def condition(kubectl, kind):
    found = kubectl.get("rolloutendpoint", "chat").get("status", {}).get("conditions", ())
    return next((one for one in found if one["type"] == kind), {})


def writers(kubectl, *what):
    """Field managers of ``spec.replicas``, and what they wrote through."""
    live = json.loads(kubectl("get", *what, "--show-managed-fields", "-o", "json"))
    return {
        (one["manager"], one.get("subresource", ""))
        for one in live["metadata"]["managedFields"]
        if "f:replicas" in one["fieldsV1"].get("f:spec", {})
    }


def test_a_real_autoscaler_scales_it_up_and_down_and_nobody_fights(bare, puppets, tmp_path):
    with (
        measuring(bare) as gauges,
        operating(bare.kubeconfig, find_free_port(), tmp_path / "log"),
    ):
        put(bare, FILE)
        has(bare, 1)
        gauges.load = FULL
        has(bare, 3)
        assert gauges.asked == {"rollout_endpoint_saturation_ratio"}
        put(bare, FILE)
        other = {**FILE, "spec": {**FILE["spec"], "model": {"uri": "rollout://tiny-llama"}}}
        [before] = bare.get("deployments")["items"]
        put(bare, other)
        eventually(
            lambda: before["metadata"]["name"] not in str(bare.get("deployments")["items"]),
            "the revision of before stayed",
        )
        has(bare, 3)
        others = writers(bare, "rend/chat") - {("kube-controller-manager", "scale")}
        assert others == set()
        [servers] = bare.get("deployments")["items"]
        found = writers(bare, "deployment", servers["metadata"]["name"])
        assert {manager for manager, _ in found} == {"rollout-operator"}
        gauges.load = MOST
        has(bare, 4)
        gauges.load = IDLE
        has(bare, 1)
        assert condition(bare, "Scaled")["reason"] == "Autoscaled"
        refused = bare.attempt("scale", "rend/chat", "--replicas=0")
        assert "an autoscaler rests while replicas is 0" in refused.stderr
        gauges.load = None
        eventually(
            lambda: condition(bare, "Scaled").get("reason") == "AutoscalerFailed",
            "it was not said that the metric is gone",
        )
        assert "FailedGetPodsMetric" in condition(bare, "Scaled")["message"]
        assert condition(bare, "Ready")["status"] == "True" and numbers(bare) == [(1, 1)]
        gauges.load = FULL
        has(bare, 3)
        fixed = {**FILE["spec"]}
        del fixed["scaling"]
        put(bare, {**FILE, "spec": fixed})
        eventually(lambda: not bare.get("hpa")["items"], "the autoscaler stayed")
        has(bare, 3)
