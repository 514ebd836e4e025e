"""``model.snapshotRef``: the weights of a snapshot of the namespace are served over a base that is named; what becomes of it moves nothing."""

import pytest
from endpoint_world import SIGNER, World

from rollout_api.serving import VARIABLE, ServeOrder

ID = "ab" * 32
RUNTIME = {"storage": {"uri": "s3://runs/team", "endpoint": "http://s3:9", "region": "here"}}
MODEL = {"snapshotRef": {"name": "good"}, "baseURI": "rollout://tiny-adder"}


def saved(**more):
    uri = f"s3://runs/team/ns/uid-1/snapshots/manifests/{ID}.json"
    return {
        "conditions": [said("Ready")],
        "run": {"name": "first", "uid": "uid-1"},
        "digest": f"blake3:{ID}",
        "location": {"object": {"uri": uri}},
        **more,
    }


def said(kind, status="True"):
    return {
        "type": kind,
        "status": status,
        "reason": "SnapshotTaken",
        "message": "words",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


@pytest.fixture
async def served():
    world = World(runtime=RUNTIME, model=MODEL)
    world.snapshots["good"] = saved()
    await world.look(2)
    world.come_up()
    await world.look(2)
    return world


async def test_servers_are_told_what_to_verify_and_whom_to_believe(served):
    [name] = served.deployments()
    [server] = served.deployments()[name]["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value") for one in server["env"]}
    told = ServeOrder.model_validate_json(env[VARIABLE])
    assert (told.uri, told.storage) == ("rollout://tiny-adder", None)
    order = told.snapshot
    assert order is not None
    assert (order.snapshot, order.place) == (ID, "s3://runs/team/ns/uid-1")
    assert (order.trusted, order.namespace) == ((SIGNER,), "ns")
    assert (order.endpoint, order.region) == ("http://s3:9", "here")
    [revision] = served.status["revisions"]
    assert revision["modelDigest"] == f"blake3:{ID}"


@pytest.mark.parametrize(
    ("status", "reason", "stalled"),
    [
        (None, "ReferenceNotFound", True),
        (saved(conditions=[said("Ready", "False")]), "WaitingForSnapshot", False),
        (saved(conditions=[said("Failed")]), "WaitingForSnapshot", True),
        (saved(location={"volume": {"claimName": "c", "path": "m"}}), "NotSupported", True),
        (saved(run={"name": "other", "uid": "uid-2"}), "NotAllowed", True),
    ],
)
async def test_what_is_not_there_or_not_to_be_read_is_named_and_nothing_is_made(
    status, reason, stalled
):
    world = World(runtime=RUNTIME, model=MODEL)
    if status is not None:
        world.snapshots["good"] = status
    await world.look()
    assert world.objects == {}
    assert world.condition("Progressing") == ("False", reason)
    assert (world.condition("Stalled")[0] == "True") == stalled


async def test_a_snapshot_that_goes_is_named_and_what_serves_goes_on(served):
    [name] = served.deployments()
    served.snapshots.clear()
    await served.look(2)
    assert (served.selected(), list(served.deployments())) == (name, [name])
    assert served.condition("Available") == ("True", "Serving")
    assert served.condition("Ready") == ("False", "ReferenceNotFound")
    assert "'good'" in served.said("Ready")
