"""``fromRun``: the model that a run has handed on becomes the next one's, with the volume it lies in."""

import pytest
from worlds import SPEC, World, build_inputs

from rollout_operator.run.plan.preconditions.upstreams import (
    Upstream,
    check_upstreams,
    from_runs,
    handed_on,
    with_uris,
)
from rollout_operator.run.render.order import build_order
from rollout_operator.run.render.volumes import claim_name

UID = "0123456789ab"
CLAIM = claim_name("sft", UID)
POSTGRES = {"ledger": {"postgres": {"secretRef": {"name": "dsn"}}}}
BUCKET = {"uri": "s3://research-runs/team/"}
OBJECT = f"blake3/ab/{'ab' * 32}"


def test_the_model_of_each_snapshot_takes_the_place_of_its_name():
    spec = {
        "model": {"fromRun": {"name": "a"}},
        "x": [{"fromRun": {"name": "a", "snapshot": "Best"}}, {"fromRun": {"name": "b"}}],
    }
    assert [one["name"] for one in from_runs(spec)] == ["a", "a", "b"]
    uris = {("a", "Latest"): "s3://b/latest", ("a", "Best"): "s3://b/best"}
    assert with_uris(spec, uris) == {
        "model": {"uri": "s3://b/latest"},
        "x": [{"uri": "s3://b/best"}, {"fromRun": {"name": "b"}}],
    }


def test_a_model_in_a_bucket_needs_no_volume():
    status = {"best": {"modelURI": f"s3://b/{UID}/{OBJECT}"}}
    found = handed_on("sft", UID, "Best", status)
    assert (found.uri, found.claim) == (f"s3://b/{UID}/{OBJECT}", "")
    assert check_upstreams([found]) is None


def test_a_model_in_the_runs_own_volume_brings_that_claim():
    status = {"lastSnapshot": {"modelURI": f"pvc://{CLAIM}/objects/{OBJECT}"}}
    found = handed_on("sft", UID, "Latest", status)
    assert found.uri is not None
    assert found.claim == CLAIM == "ledger-01234567-sft-coordinator-0"


@pytest.mark.parametrize("claim", ["secrets-of-others", f"{CLAIM}x", f"x/{CLAIM}"])
def test_a_volume_that_is_not_the_runs_own_is_never_mounted(claim):
    status = {"lastSnapshot": {"modelURI": f"pvc://{claim}/objects/{OBJECT}"}}
    found = handed_on("sft", UID, "Latest", status)
    assert (found.uri, found.claim) == (None, "")


@pytest.mark.parametrize("snapshot", ["Latest", "Best", "step-000010"])
def test_a_run_that_has_handed_nothing_on_is_named_with_what_to_do(snapshot):
    gate = check_upstreams([handed_on("sft", UID, snapshot, {"lastSnapshot": {"step": 4}})])
    assert gate is not None
    assert gate.reason == "ReferenceNotFound"
    assert f"'{snapshot}'" in gate.message
    assert "storage.uri" in gate.message


def test_a_run_that_is_waited_for_is_progress():
    gate = check_upstreams([Upstream(name="sft", state="Waiting")])
    assert gate is not None and not gate.stalled


@pytest.mark.parametrize(
    ("storage", "place"),
    [
        (None, "pvc://ledger-uid-0001-run-coordinator-0/objects"),
        (BUCKET, "s3://research-runs/team/ns/uid-0001"),
        ({**BUCKET, **POSTGRES}, "s3://research-runs/team/ns/uid-0001"),
        (POSTGRES, None),
    ],
)
def test_pods_are_told_where_others_find_their_objects(storage, place):
    spec = SPEC if storage is None else {**SPEC, "storage": storage}
    assert build_order(build_inputs(spec)).layout.objects_uri == place


def test_what_was_packed_stays_named_when_a_later_word_says_less():
    world = World()
    world.settle()
    packed = {"name": "step-000004", "step": 4, "modelURI": "s3://b/x"}
    world.report(step=4, lastSnapshot=packed)
    world.settle()
    assert world.status["lastSnapshot"]["modelURI"] == "s3://b/x"

    world.report(step=4, lastSnapshot={"name": "step-000004", "step": 4})
    world.settle()
    assert world.status["lastSnapshot"]["modelURI"] == "s3://b/x"
    world.report(step=8, lastSnapshot={"name": "step-000008", "step": 8})
    world.settle()
    assert world.status["lastSnapshot"] == {"name": "step-000008", "step": 8}


def test_the_end_and_its_model_are_told_together():
    world = World()
    world.settle()
    last = {"name": "step-000400", "step": 400, "modelURI": "s3://b/x"}
    outcome = {"kind": "Succeeded", "reason": "Done"}
    world.report(step=400, lastSnapshot=last, best={**last, "metric": "accuracy"}, outcome=outcome)
    world.tick()
    assert world.condition("Finished") == ("True", "Succeeded")
    assert world.status["lastSnapshot"] == last
    assert world.status["best"]["metric"] == "accuracy"
