"""A RolloutSnapshot of one that exists: read by a Job with the runtime's store settings, and told as it is, whatever fails."""

import json

import pytest
from model_requests import FAULTS
from purge_story import DIGEST, PLACE, ROOT, UID, play, runtime

from rollout_api import names
from rollout_api.v1alpha1.pods.allowed import Allowed
from rollout_api.v1alpha1.snapshot import SnapshotStatus
from rollout_operator.run.plan.preconditions.restoring import find_source
from rollout_operator.run.plan.preconditions.upstreams import Readable

OTHER = "ed25519:" + "1" * 64
ARCHIVE = "s3://archive/good/one"
LAYERS = [
    {"kind": "train_state", "digest": "c" * 64, "size_bytes": 100, "grade": "exact"},
    {"kind": "buffer", "digest": "d" * 64, "size_bytes": 20, "grade": "exact"},
]
ANSWER = {"state": "Taken", "id": DIGEST, "step": 40, "grade": "exact", "size_bytes": 120}
TAKEN = ("Complete", json.dumps({**ANSWER, "layers": LAYERS}))


def existing(place=ARCHIVE, digest=DIGEST, **spec):
    uri = f"{place}/{names.SNAPSHOT_MANIFESTS}{DIGEST}.json"
    source = {"existing": {"uri": uri, "digest": f"blake3:{digest}"}}
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutSnapshot"}
    meta = {"name": "best", "namespace": "ns", "uid": UID}
    said = {"source": source, "deadlineSeconds": 600, "deletionPolicy": "Retain", **spec}
    return {**head, "metadata": meta, "spec": said}


def trusting(**spec):
    return runtime(trustedSigners=[OTHER], allowed={"storage": ["s3://archive/good/"]}, **spec)


def adopt(made=None, job=TAKEN, **more):
    return play(
        objects=more.pop("objects", [trusting()]), adopts=made or existing(), job=job, **more
    )


def condition(life, kind):
    found = [one for one in life.status["conditions"] if one["type"] == kind]
    return (found[0]["status"], found[0]["reason"]) if found else None


def order_of(life):
    (container,) = life.jobs[0]["spec"]["template"]["spec"]["containers"]
    found = {one["name"]: one.get("value", "") for one in container["env"]}
    return json.loads(found["ROLLOUT_ADOPT_ORDER"])


@pytest.fixture(scope="module")
def clean():
    return adopt()


def test_it_is_read_by_a_job_and_told_as_it_is(clean):
    assert clean.broken == [], clean.log
    for kind in ("Ready", "Complete", "Finished"):
        assert condition(clean, kind) == ("True", "SnapshotTaken")
    assert clean.status["digest"] == f"blake3:{DIGEST}"
    assert clean.status["step"] == 40
    assert [one["name"] for one in clean.status["layers"]] == ["TrainState", "Buffer"]
    SnapshotStatus.model_validate(clean.status)
    said = order_of(clean)
    assert (said["snapshot"], said["place"], said["namespace"]) == (DIGEST, ARCHIVE, "ns")
    assert said["foreign"] == [OTHER]
    assert len(said["trusted"]) == 2
    assert [one["metadata"]["name"] for one in clean.jobs] == [names.adopt_name(UID)]


def test_a_run_that_may_read_the_place_begins_with_it(clean):
    lists = Allowed.model_validate({"storage": ["s3://archive/good/"]})
    source = find_source("best", clean.status, Readable(namespace="ns", lists=lists))
    assert (source.state, source.id, source.place) == ("Taken", DIGEST, ARCHIVE)
    other = find_source("best", clean.status, Readable(namespace="ns", lists=Allowed()))
    assert other.state == "Stray"


@pytest.mark.parametrize("kind", FAULTS)
def test_with_a_fault_at_every_call_it_comes_to_the_same_end(clean, kind):
    assert clean.num_calls > 6
    for at_call in range(1, clean.num_calls + 1):
        life = adopt(kind=kind, at_call=at_call)
        explained = "\n".join([f"{kind} at {at_call}", *life.log, *life.broken])
        assert life.broken == [], explained
        assert condition(life, "Complete") == ("True", "SnapshotTaken"), explained
        assert len(life.jobs) == 1, explained


def test_one_that_nobody_trusted_has_signed_fails_with_the_reason():
    life = adopt(
        job=("Error", "SnapshotRefused: snapshot is signed by ed25519:22, whom nobody trusts")
    )
    assert condition(life, "Failed") == ("True", "SnapshotRefused")
    assert "location" not in life.status


def test_a_store_that_is_away_is_asked_until_the_deadline():
    life = adopt(job=("Error", "PlaceUnreachable: 503"))
    assert condition(life, "Failed") == ("True", "DeadlineExceeded")
    said = next(one for one in life.status["conditions"] if one["type"] == "Failed")
    assert "503" in said["message"]


@pytest.mark.parametrize(
    "answer",
    ["", "{}", "[" * 4000, json.dumps({**ANSWER, "id": "cd" * 32, "layers": LAYERS}), "\x1b[2J"],
)
def test_an_answer_that_is_none_of_this_snapshot_makes_nothing_of_it(answer):
    life = adopt(job=("Complete", answer))
    assert condition(life, "Failed") == ("True", "SnapshotRefused")
    assert "location" not in life.status


@pytest.mark.parametrize(
    ("made", "objects", "reason"),
    [
        (existing("s3://archive/evil/one"), [trusting()], "NotAllowed"),
        (existing(f"{ROOT}/victim/uid"), [trusting()], "NotAllowed"),
        (existing(f"{ROOT}/ns/../victim/uid"), [trusting()], "NotAllowed"),
        (existing("s3://archive/good/../evil"), [trusting()], "NotAllowed"),
        (existing(digest="cd" * 32), [trusting()], "InvalidSpec"),
        (existing(), [], "RuntimeNotFound"),
        (
            existing(runtimeRef={"kind": "RolloutRuntime", "name": "mine"}),
            [trusting()],
            "RuntimeNotFound",
        ),
    ],
)
def test_what_this_namespace_may_not_read_nobody_is_sent_for(made, objects, reason):
    """Another tenant's place, a place that no runtime names, an id that is not the file's."""
    life = adopt(made, objects=objects)
    assert life.jobs == []
    assert condition(life, "Failed") == ("True", "DeadlineExceeded")
    said = next(one for one in life.status["conditions"] if one["type"] == "Ready")
    assert reason in {"NotAllowed", "InvalidSpec", "RuntimeNotFound"}
    assert "last:" in said["message"]


def test_one_of_the_namespaces_own_place_needs_no_list():
    life = adopt(existing(f"{ROOT}/ns/some-run"), objects=[runtime()])
    assert condition(life, "Complete") == ("True", "SnapshotTaken")


def test_its_bytes_are_nobodys_to_remove(clean):
    """Deleted, the object goes; it has no finalizer."""
    assert PLACE[2] == "best"
    assert "run" not in clean.status
