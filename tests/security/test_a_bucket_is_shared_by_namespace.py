"""The attacker's wish: objects of another namespace in the bucket that all runs share, by a uri, a status or a credential."""

import pytest
from worlds import SPEC, build_inputs

from rollout_api.checks import check_document
from rollout_api.checks.facts import Facts
from rollout_api.v1alpha1.pods.allowed import Allowed
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.worker import WorkerOrder
from rollout_operator.run.attempt import render_record
from rollout_operator.run.plan.preconditions.allowed import check_allowed
from rollout_operator.run.plan.preconditions.upstreams import (
    Readable,
    check_upstreams,
    handed_on,
    keep_own,
)

SHARED = {"uri": "s3://shared/runs/"}
UID = "0123456789ab"
OBJECT = f"blake3/ab/{'ab' * 32}"
READABLE = Readable(
    namespace="mine",
    roots=("s3://shared/runs/",),
    lists=Allowed.model_validate({"storage": ["s3://teams/$(namespace)/", "s3://exact/runs"]}),
)


def order_of(spec, runtime=None):
    chosen = RuntimeSpec.model_validate({"storage": runtime} if runtime else {})
    record = render_record(build_inputs(spec, chosen))
    return WorkerOrder.model_validate_json(record.config_map["data"]["order.json"])


@pytest.mark.parametrize(
    ("own", "runtime"), [(None, SHARED), (SHARED, None), (SHARED, {"uri": "s3://other"})]
)
def test_pods_are_told_their_namespaces_place_and_never_the_one_above_it(own, runtime):
    order = order_of(SPEC if own is None else {**SPEC, "storage": own}, runtime)
    assert order.spec.storage is not None
    assert order.spec.storage.uri == "s3://shared/runs/ns"
    assert order.layout.objects_uri == "s3://shared/runs/ns/uid-0001"
    assert '"s3://shared/runs/"' not in order.model_dump_json()


def test_a_volume_of_the_coordinators_own_has_no_namespace_in_its_name():
    assert order_of(SPEC).layout.objects_uri == "pvc://ledger-uid-0001-run-coordinator-0/objects"


def named(uri):
    status = {"lastSnapshot": {"modelURI": uri}}
    return keep_own([handed_on("sft", UID, "Latest", status)], READABLE)


@pytest.mark.parametrize(
    "root", ["s3://shared/runs", "s3://teams/mine/deep", "s3://teams", "s3://exact/runs"]
)
def test_a_model_in_the_place_of_the_run_that_made_it_is_read(root):
    uri = f"{root}/mine/{UID}/{OBJECT}"
    (found,) = named(uri)
    assert found.uri == uri
    assert check_upstreams([found]) is None


@pytest.mark.parametrize(
    "uri",
    [
        f"s3://shared/runs/theirs/{UID}/{OBJECT}",
        f"s3://shared/runs/mine/another-uid/{OBJECT}",
        f"s3://shared/runs/theirs/x/mine/{UID}/{OBJECT}",
        f"s3://shared/runs/{UID}/{OBJECT}",
        f"s3://shared/runs/mine/{UID}/../../theirs/x/{OBJECT}",
        f"s3://shared/runs/theirs/../mine/{UID}/{OBJECT}",
        f"s3://shared/runs/theirs/blake3/mine/{UID}/blake3/../../{OBJECT}",
        f"s3://stranger/mine/{UID}/{OBJECT}",
        f"s3://shared/runs/mine/{UID}",
        f"file:///etc/mine/{UID}/{OBJECT}",
        "hf://stranger/model",
        f"pvc://secrets/mine/{UID}/{OBJECT}?",
    ],
)
def test_a_status_that_names_another_place_is_not_followed(uri):
    gate = check_upstreams(named(uri))
    assert gate is not None
    assert gate.reason in {"NotAllowed", "ReferenceNotFound"}
    assert "sft" in gate.message


def judged(uri):
    spec = RolloutRunSpec.model_validate({**SPEC, "storage": {"uri": uri}})
    return check_allowed(spec, READABLE.lists, "mine")


@pytest.mark.parametrize("uri", ["s3://teams", "s3://teams/", "s3://teams/mine", "s3://exact/runs"])
def test_what_is_judged_is_where_the_objects_go(uri):
    assert judged(uri) is None


@pytest.mark.parametrize(
    "uri", ["s3://teams/theirs", "s3://teams/theirs/mine", "s3://exact", "s3://"]
)
def test_a_place_of_another_namespace_is_none_of_mine(uri):
    gate = judged(uri)
    assert gate is not None and gate.reason == "NotAllowed"


def naming(field, uri):
    model, train = {"uri": uri}, SPEC["train"]
    return {
        "model": {**SPEC, "model": model},
        "reference": {**SPEC, "train": {**train, "reference": model}},
        "reward": {**SPEC, "train": {**train, "rewards": [{"model": model}]}},
    }[field]


@pytest.mark.parametrize("root", ["shared/runs", "teams", "exact/runs"])
@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("field", ["model", "reference", "reward"])
def test_a_manifest_names_no_object_of_another_namespace_as_its_model(field, scheme, root):
    uri = f"{scheme}://{root}/theirs/{UID}/{OBJECT}"
    spec = RolloutRunSpec.model_validate(naming(field, uri))
    for lists in (READABLE.lists, Allowed(), None):
        gate = check_allowed(spec, lists, "mine")
        assert gate is not None and gate.reason == "NotAllowed"
        assert uri in gate.message


@pytest.mark.parametrize("field", ["model", "reference", "reward"])
def test_a_manifest_names_no_object_of_a_volume_as_its_model(field):
    run = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "run"},
        "spec": naming(field, f"pvc://shared/runs/theirs/{UID}/{OBJECT}"),
    }
    problems = check_document(run, Facts(platform="cluster"))
    assert any(one.reason == "NotSupported" and one.field.endswith("uri") for one in problems), (
        problems
    )
