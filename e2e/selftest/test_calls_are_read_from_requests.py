"""A call's verb and object come from method, path, query and headers alone, as the API server's audit has them."""

import pytest

from faults.calls import parse_call

PODS = "/api/v1/namespaces/ns/pods"
RUNS = "/apis/rollout.dev/v1alpha1"
APPLY = {"Content-Type": "application/apply-patch+yaml"}


@pytest.mark.parametrize(
    ("method", "path", "verb", "resource", "namespace", "name", "subresource"),
    [
        ("GET", PODS, "list", "pods", "ns", "", ""),
        ("GET", f"{PODS}/p", "get", "pods", "ns", "p", ""),
        ("POST", PODS, "create", "pods", "ns", "", ""),
        ("PUT", f"{PODS}/p/status", "update", "pods", "ns", "p", "status"),
        ("POST", f"{PODS}/p/eviction", "create", "pods", "ns", "p", "eviction"),
        ("PATCH", f"{PODS}/p", "patch", "pods", "ns", "p", ""),
        ("DELETE", f"{PODS}/p", "delete", "pods", "ns", "p", ""),
        ("DELETE", PODS, "deletecollection", "pods", "ns", "", ""),
        ("GET", f"{RUNS}/rolloutruns", "list", "rolloutruns", "", "", ""),
        ("GET", f"{RUNS}/clusterrolloutruntimes/r", "get", "clusterrolloutruntimes", "", "r", ""),
        ("GET", "/api/v1/namespaces", "list", "namespaces", "", "", ""),
        ("GET", "/api/v1/namespaces/ns", "get", "namespaces", "", "ns", ""),
        ("PUT", "/api/v1/namespaces/ns/finalize", "update", "namespaces", "", "ns", "finalize"),
        ("GET", "/readyz", "get", "", "", "", ""),
        ("GET", "/apis/rollout.dev/v1alpha1", "get", "", "", "", ""),
    ],
)
def test_a_request_is_a_call(method, path, verb, resource, namespace, name, subresource):
    call = parse_call(method, path, {}, {})
    assert (call.verb, call.resource, call.namespace) == (verb, resource, namespace)
    assert (call.name, call.subresource) == (name, subresource)


def test_server_side_apply_is_a_verb_of_its_own():
    assert parse_call("PATCH", f"{PODS}/p", {}, APPLY).verb == "apply"


def test_a_watch_is_told_by_its_query():
    assert parse_call("GET", PODS, {"watch": "true"}, {}).verb == "watch"
    assert parse_call("GET", PODS, {"watch": "1"}, {}).verb == "watch"
    assert parse_call("GET", PODS, {"watch": "false"}, {}).verb == "list"
