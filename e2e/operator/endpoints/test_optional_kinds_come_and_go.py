"""KEDA's ScaledObject and the Gateway API's HTTPRoute, by their own definitions: made where they are served, named where they are not."""

import json
from contextlib import suppress

import pytest
from operators import eventually, operating
from token_of_the_table import grant

from cluster import build
from cluster.control.ports import find_free_port
from cluster.errors import BuildError
from cluster.pins import GATEWAY_API, KEDA
from faults.proxy import running
from rollout_operator.rbac import RULES

pytestmark = pytest.mark.process

GROUPS = {"keda.sh", "gateway.networking.k8s.io"}
FILES = {
    KEDA: "config/crd/bases/keda.sh_scaledobjects.yaml",
    GATEWAY_API: "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
}
VERBS = {"apply": "patch"}
CRDS = ("crd/scaledobjects.keda.sh", "crd/httproutes.gateway.networking.k8s.io")
GATEWAY = {"name": "public", "namespace": "edge", "sectionName": "https"}
ENDPOINT = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutEndpoint",
    "metadata": {"name": "chat"},
    "spec": {
        "model": {"uri": "rollout://tiny-adder"},
        "engine": {"embedded": {}},
        "apiKeys": [{"name": "ann", "secretKeyRef": {"name": "keys", "key": "ann"}}],
        "scaling": {"maxReplicas": 4, "keda": {"serverAddress": "http://prometheus:9090"}},
        "route": {"gateways": [GATEWAY], "hostnames": ["chat.example.com"]},
    },
}


@pytest.fixture(scope="module")
def definitions():
    """The projects' own files, as published."""
    try:
        return [build.fetch(module) / name for module, name in FILES.items()]
    except BuildError as error:
        pytest.skip(f"cannot run here: {error}")


def condition(kubectl, kind):
    found = kubectl.get("rolloutendpoint", "chat").get("status", {}).get("conditions", ())
    return next((one for one in found if one["type"] == kind), {})


def said(kubectl, kind, reason):
    eventually(
        lambda: condition(kubectl, kind).get("reason") == reason,
        f"{kind} did not become {reason}: {condition(kubectl, kind)}",
    )


def patch(kubectl, spec):
    body = json.dumps({"spec": spec})
    kubectl("patch", "rend/chat", "--type=merge", "-p", body)


def unused(proxy):
    granted = {
        (resource, verb)
        for rule in RULES
        if rule.group in GROUPS
        for resource in rule.resources
        for verb in rule.verbs
    }
    calls = [(one.call.resource, one.call.verb, one.status) for one in proxy.records()]
    made = {(resource, "create") for resource, _, status in calls if status == 201}
    return granted - made - {(name, VERBS.get(verb, verb)) for name, verb, _ in calls}


def test_they_are_made_put_right_and_taken_away_with_the_rights_of_the_table(
    bare, puppets, tmp_path, definitions
):
    bare("create", "secret", "generic", "keys", "--from-literal=ann=x")
    path = tmp_path / "kubeconfig"
    with running(bare.kubeconfig) as proxy:
        path.write_text(proxy.kubeconfig(token=grant(bare, bare.namespace)))
        namespace = {"ROLLOUT_OPERATOR_NAMESPACE": bare.namespace}
        with operating(path, find_free_port(), tmp_path / "log", **namespace):
            try:
                live(bare, definitions)
            finally:
                bare.attempt("delete", *CRDS, "--timeout=60s")
            said(bare, "Ready", "Serving")
        with suppress(AssertionError):  # a watch is known when it has ended
            eventually(lambda: not unused(proxy), "some rights were not used", seconds=20)
        refused = [one.call.path for one in proxy.records() if one.status == 403]
        assert (unused(proxy), refused) == (set(), [])


def live(kubectl, definitions):
    kubectl.apply(ENDPOINT)
    for kind in ("Scaled", "Routed"):
        said(kubectl, kind, "KindNotServed")
    said(kubectl, "Ready", "Serving")
    kubectl("create", *(part for one in definitions for part in ("-f", str(one))))
    said(kubectl, "Scaled", "Autoscaled")
    said(kubectl, "Routed", "RouteNotAccepted")
    whole(kubectl)
    for plural in ("scaledobjects", "httproutes"):
        spoil(kubectl, plural)
    accept(kubectl)
    said(kubectl, "Routed", "RouteAccepted")
    patch(kubectl, {"scaling": {"maxReplicas": 6}})
    eventually(
        lambda: one_of(kubectl, "scaledobjects")["spec"]["maxReplicaCount"] == 6, "no other bound"
    )
    patch(kubectl, {"scaling": None, "route": None})
    for plural in ("scaledobjects", "httproutes"):
        eventually(lambda p=plural: not kubectl.get(p)["items"], f"{plural} stayed")


def one_of(kubectl, plural):
    [found] = kubectl.get(plural)["items"]
    return found


def whole(kubectl):
    """No field was dropped by the definitions, or is another one."""
    spec = one_of(kubectl, "scaledobjects")["spec"]
    assert spec["scaleTargetRef"]["name"] == "chat" and spec["minReplicaCount"] == 1
    assert spec["triggers"][0]["metadata"]["serverAddress"] == "http://prometheus:9090"
    behaviour = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behaviour["scaleDown"]["stabilizationWindowSeconds"] == 300
    spec = one_of(kubectl, "httproutes")["spec"]
    assert spec["hostnames"] == ["chat.example.com"]
    [parent] = spec["parentRefs"]
    assert GATEWAY.items() <= parent.items()
    [rule] = spec["rules"]
    assert rule["timeouts"] == {"request": "660s"}
    [backend] = rule["backendRefs"]
    assert (backend["name"], backend["port"], backend["kind"]) == ("chat-server", 80, "Service")


def spoil(kubectl, plural):
    """Another labels it otherwise, and it is put right."""
    name = one_of(kubectl, plural)["metadata"]["name"]
    label = "app.kubernetes.io/part-of"
    kubectl("label", "--overwrite", plural, name, f"{label}=else")
    eventually(
        lambda: one_of(kubectl, plural)["metadata"]["labels"][label] == "rollout",
        f"{plural} stayed spoiled",
    )


def accept(kubectl):
    """What the controller of a Gateway writes."""
    found = one_of(kubectl, "httproutes")
    stamp = {"lastTransitionTime": "2026-01-01T00:00:00Z", "message": "", "reason": "Accepted"}
    conditions = [{"type": one, "status": "True", **stamp} for one in ("Accepted", "ResolvedRefs")]
    parent = {"parentRef": GATEWAY, "controllerName": "example.com/c", "conditions": conditions}
    body = json.dumps({"status": {"parents": [parent]}})
    name = found["metadata"]["name"]
    kubectl("patch", "httproutes", name, "--subresource=status", "--type=merge", "-p", body)
