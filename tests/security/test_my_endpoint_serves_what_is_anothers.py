"""A namespace editor who may write an endpoint, and through a run's pods that run's status, wants servers to read what is not theirs."""

import pytest

from rollout_api.v1alpha1.inference.endpoint import EndpointModel
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.controller.queue import Key
from rollout_operator.endpoint.sources.find import find_model
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.plan.model import Blocked

OBJECT = f"blake3/ab/{'ab' * 32}"
MANIFEST = f"snapshots/manifests/{'ab' * 32}.json"
RUNTIME = RuntimeSpec.model_validate({"storage": {"uri": "s3://b/runs"}})
ENDPOINT = Key(namespace="mine", name="chat", kind="RolloutEndpoint")
PLACES = [
    "s3://b/runs/victim/uid-1",
    "s3://b/runs/mine/uid-2",
    "s3://b/runs/mine/../victim/uid-1",
    "s3://b/runs/mine/%2e%2e/victim/uid-1",
    "s3://other/mine/uid-1",
    "http://169.254.169.254/mine/uid-1",
    "file:///etc/mine/uid-1",
    "s3://b/runs/mine/uid-1?x=/",
    "s3://b/runs//mine/uid-1",
    "s3://b/runs/mine/uid-1/",
]


def put(store, kind, status):
    meta = {"name": "it", "namespace": "mine", "uid": "uid-1", "resourceVersion": "1"}
    store.put_object(kind, {"metadata": {**meta, "generation": 1}, "spec": {}, "status": status})


def condition(kind):
    return {
        "type": kind,
        "status": "True",
        "reason": "Succeeded",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


@pytest.mark.parametrize("place", PLACES)
def test_by_the_status_of_my_run(place):
    store = RunStore()
    best = {"name": "s", "step": 1, "modelURI": f"{place}/{OBJECT}"}
    put(store, "RolloutRun", {"conditions": [condition("Finished")], "best": best})
    model = EndpointModel.model_validate({"fromRun": {"name": "it", "snapshot": "Best"}})
    assert isinstance(find_model(store, ENDPOINT, model, RUNTIME), Blocked)


@pytest.mark.parametrize("place", PLACES)
def test_by_the_status_of_my_snapshot(place):
    store = RunStore()
    status = {
        "conditions": [condition("Ready")],
        "run": {"name": "r", "uid": "uid-1"},
        "digest": f"blake3:{'ab' * 32}",
        "location": {"object": {"uri": f"{place}/{MANIFEST}"}},
    }
    put(store, "RolloutSnapshot", status)
    named = {"snapshotRef": {"name": "it"}, "baseURI": "rollout://tiny-adder"}
    model = EndpointModel.model_validate(named)
    assert isinstance(find_model(store, ENDPOINT, model, RUNTIME), Blocked)


def test_what_is_the_runs_own_is_taken():
    store = RunStore()
    best = {"name": "s", "step": 1, "modelURI": f"s3://b/runs/mine/uid-1/{OBJECT}"}
    put(store, "RolloutRun", {"conditions": [condition("Finished")], "best": best})
    model = EndpointModel.model_validate({"fromRun": {"name": "it", "snapshot": "Best"}})
    found = find_model(store, ENDPOINT, model, RUNTIME)
    assert not isinstance(found, Blocked)
    assert found.digest == f"blake3:{'ab' * 32}"
