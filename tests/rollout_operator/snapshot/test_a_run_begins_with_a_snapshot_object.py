"""A run that names a RolloutSnapshot waits for it, takes it from its own namespace's bucket only, and is told what it is."""

import json
from dataclasses import replace

import pytest
from worlds import SPEC, build_inputs

from rollout_api.v1alpha1.pods.allowed import Allowed
from rollout_api.worker import RestoreOrder, WorkerOrder
from rollout_operator.controller.queue import Key
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.plan.preconditions.restoring import (
    OWN_VOLUME,
    check_restore,
    find_source,
    told_before,
)
from rollout_operator.run.plan.preconditions.upstreams import Readable
from rollout_operator.run.render.order import build_order

ID = "ab" * 32
PLACE = "s3://b/runs/ns/uid-1"
READABLE = Readable(namespace="ns", roots=("s3://b/runs",), lists=Allowed())


def condition(kind, status="True", message="words"):
    return {
        "type": kind,
        "status": status,
        "reason": "SnapshotTaken",
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def status(uri=f"{PLACE}/snapshots/manifests/{ID}.json", **more):
    return {
        "conditions": [condition("Ready")],
        "run": {"name": "first", "uid": "uid-1"},
        "digest": f"blake3:{ID}",
        "location": {"object": {"uri": uri}},
        "ofALaterVersion": 1,
        **more,
    }


def test_one_that_is_durable_is_what_the_run_begins_with():
    source = find_source("best", status(), READABLE)
    assert (source.state, source.id, source.place) == ("Taken", ID, PLACE)
    assert check_restore(source) is None


def test_nobody_begins_with_one_that_is_being_deleted():
    """Its bytes may be going."""
    gate = check_restore(find_source("best", status(), READABLE, deleting=True))
    assert gate is not None
    assert "is being deleted" in gate.message


@pytest.mark.parametrize(
    ("said", "reason", "stalled"),
    [
        (None, "ReferenceNotFound", True),
        ({}, "WaitingForSnapshot", False),
        (status(conditions=[condition("Ready", "False")]), "WaitingForSnapshot", False),
        (
            status(conditions=[condition("Ready", "False"), condition("Failed")]),
            "WaitingForSnapshot",
            True,
        ),
        (
            status(location={"volume": {"claimName": "c", "path": "objects/m"}}),
            "NotSupported",
            True,
        ),
        (status(location=None), "NotSupported", True),
        (status(uri=f"s3://b/runs/other/uid-1/snapshots/manifests/{ID}.json"), "NotAllowed", True),
        (status(uri=f"s3://b/runs/ns/uid-2/snapshots/manifests/{ID}.json"), "NotAllowed", True),
        (
            status(uri=f"s3://b/runs/ns/../x/uid-1/snapshots/manifests/{ID}.json"),
            "NotAllowed",
            True,
        ),
        (status(uri=f"s3://elsewhere/ns/uid-1/snapshots/manifests/{ID}.json"), "NotAllowed", True),
        (status(uri="s3://b/runs/ns/uid-1"), "NotAllowed", True),
        (status(run={"name": "first"}), "NotAllowed", True),
        (status(step="many"), "WaitingForSnapshot", True),
    ],
)
def test_what_is_not_there_or_not_to_be_read_holds_the_run_back_and_says_why(said, reason, stalled):
    gate = check_restore(find_source("best", said, READABLE))
    assert gate is not None
    assert (gate.reason.value, gate.stalled) == (reason, stalled)
    assert "best" in gate.message


def test_what_lies_on_its_own_volume_is_read_by_the_run_alone():
    """Another run mounts no volume but its own."""
    there = status(location={"volume": {"claimName": "claim-1", "path": "objects/m"}})
    source = find_source("best", there, replace(READABLE, volume="claim-1"))
    assert (source.state, source.id, source.place) == ("Taken", ID, OWN_VOLUME)
    for readable in (READABLE, replace(READABLE, volume="claim-2")):
        assert find_source("best", there, readable).state == "Volume"
    nowhere = find_source("best", status(location=None), replace(READABLE, volume="claim-1"))
    assert nowhere.state == "Volume"


def test_a_run_that_was_told_of_it_goes_on_when_its_object_is_gone():
    """It has begun with it, and needs it no more; one that names another waits for that."""
    wish = {"restoreFrom": {"snapshotRef": {"name": "best"}}}
    restore = {"snapshot": ID, "place": PLACE, "trusted": []}
    order = json.dumps({"spec": wish, "restore": restore})
    gone = find_source("best", None, READABLE)
    kept = told_before(gone, order, wish)
    assert (kept.state, kept.id, kept.place) == ("Taken", ID, PLACE)
    another = {"restoreFrom": {"snapshotRef": {"name": "other"}}}
    assert told_before(gone, order, another) is gone
    assert told_before(gone, json.dumps({"spec": wish}), wish) is gone
    assert told_before(gone, None, wish) is gone


def test_a_request_needs_the_object_again_and_one_that_was_taken_out_does_not():
    wish = {"restoreFrom": {"snapshotRef": {"name": "best"}, "request": "first"}}
    restore = {"snapshot": ID, "place": PLACE, "trusted": []}
    order = json.dumps({"spec": wish, "restore": restore})
    gone = find_source("best", None, READABLE)
    assert told_before(gone, order, wish).state == "Taken"
    without = {"restoreFrom": {"snapshotRef": {"name": "best"}}}
    assert told_before(gone, order, without).state == "Taken"
    more = {"restoreFrom": {"snapshotRef": {"name": "best"}, "request": "second"}}
    assert told_before(gone, order, more) is gone


def test_the_pods_are_told_what_and_whom_to_believe():
    order = RestoreOrder(snapshot=ID, place=PLACE, trusted=("ed25519:" + "0" * 64,))
    told = build_order(replace(build_inputs(), restore=order))
    assert WorkerOrder.model_validate_json(told.model_dump_json()).restore == order
    assert build_order(build_inputs()).restore is None
    assert "request" not in (told.restore or order).model_dump(exclude_none=True)


def test_news_of_a_snapshot_wakes_the_run_that_waits_for_it_and_news_of_a_run_the_snapshot():
    woken = []
    store = RunStore(woken.append)
    spec = {**SPEC, "restoreFrom": {"snapshotRef": {"name": "best"}}}

    def put(kind, name, version, spec, conditions=()):
        meta = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": str(version)}
        live = {"metadata": meta, "spec": spec, "status": {"conditions": list(conditions)}}
        store.put_object(kind, live)

    put("RolloutRun", "second", 1, spec)
    put("RolloutSnapshot", "best", 2, {"source": {"run": {"name": "first"}}})
    woken.clear()
    put(
        "RolloutSnapshot",
        "best",
        3,
        {"source": {"run": {"name": "first"}}},
        [condition("Finished")],
    )
    assert Key(namespace="ns", name="second", kind="RolloutRun") in woken
    woken.clear()
    put("RolloutRun", "first", 4, SPEC)
    assert Key(namespace="ns", name="best", kind="RolloutSnapshot") in woken


def test_snapshots_are_not_counted_as_runs():
    store = RunStore()
    meta = {"name": "best", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    ready = {**condition("Ready", "False"), "reason": "Saving"}
    store.put_object(
        "RolloutSnapshot", {"metadata": meta, "spec": {}, "status": {"conditions": [ready]}}
    )
    assert (store.index.num_at_work, store.index.by_ready()) == (0, {})
    store.drop_object("RolloutSnapshot", {"metadata": meta})
    assert store.index.num_at_work == 0
