"""What the pod that reads an existing snapshot finds in a bucket of S3 or of Google, and what it refuses."""

import os
import subprocess
import sys

import pytest
from ledger_kit import IDENTITY
from objects_kit import SERVERS
from snapshot_kit import make_run, snapshot

from rollout.entrypoints.errands.adopt import render
from rollout.errors import SnapshotRefused, StoreError
from rollout.objects.filesystem import FilesystemStore
from rollout.runs.snapshots.adopting import adopt
from rollout.runs.snapshots.places import WhereToLook, open_object_path
from rollout.snapshots.saving import copy_snapshot
from rollout.snapshots.signing import open_signer
from rollout_api.worker import AdoptOrder
from rollout_operator.snapshot.answers import parse_answer


@pytest.fixture(params=SERVERS)
def where(request, new_bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_SCRATCH", str(tmp_path / "cache"))
    made = new_bucket(request.param)
    return WhereToLook(object_path=f"{made.uri}/archive/{IDENTITY.uid}", endpoint=made.endpoint)


@pytest.fixture
async def made(where, tmp_path):
    """A snapshot that lies in the bucket, its place and its order."""
    await make_run(tmp_path / "run")
    signer = open_signer(tmp_path / "config" / "snapshot.key")
    one = snapshot(tmp_path / "run", signer, 4, "of long ago")
    place = open_object_path(where, must_exist=False).open()
    copy_snapshot(FilesystemStore(tmp_path / "run" / "objects"), place, one)
    order = AdoptOrder(
        snapshot=one.id,
        place=where.object_path,
        trusted=(signer.public,),
        namespace="default",
        endpoint=where.endpoint,
    )
    return one, place, order


def changed(order, **changes):
    return order.model_copy(update=changes)


def test_what_it_is_reaches_the_operator(made):
    one, _, order = made
    answer = parse_answer(render(adopt(order)))
    assert (answer.state, answer.id, answer.step) == ("Taken", one.id, one.header.step)
    assert answer.size_bytes == one.size_bytes
    assert {layer.kind for layer in answer.layers} == {layer.kind for layer in one.layers}


def test_whom_nobody_trusts_is_not_believed(made):
    _, _, order = made
    with pytest.raises(SnapshotRefused, match="does not trust"):
        adopt(changed(order, trusted=("ed25519:" + "1" * 64,)))


def test_of_this_installation_only_those_of_the_namespace_are_taken(made):
    """Its signer vouches for the namespace, too; of another installation that means nothing here."""
    _, _, order = made
    with pytest.raises(SnapshotRefused, match="own namespace"):
        adopt(changed(order, namespace="mallory"))
    assert adopt(changed(order, namespace="mallory", foreign=order.trusted)).state == "Taken"


def test_an_object_that_is_gone_is_named(made):
    one, place, order = made
    gone = next(iter(one.objects))
    place.store.delete(gone)
    with pytest.raises(SnapshotRefused, match=f"object {gone} is not there"):
        adopt(order)


def test_one_that_is_not_there_or_was_changed_is_refused(made):
    one, place, order = made
    with pytest.raises(SnapshotRefused, match="not found"):
        adopt(changed(order, snapshot="0" * 64))
    name = f"snapshots/manifests/{one.id}.json"
    found = place.named.get(name, 1 << 20)
    place.named.replace(name, found.data.replace(b'"step": 4', b'"step": 5'), found.tag)
    with pytest.raises((SnapshotRefused, StoreError), match="was changed"):
        adopt(order)


@pytest.mark.process
@pytest.mark.parametrize("where", ["s3"], indirect=True)
def test_the_last_word_of_the_pod_is_the_answer_or_the_refusal(made, tmp_path):
    one, _, order = made
    for ask, words in (
        (order, one.id),
        (changed(order, trusted=("ed25519:" + "1" * 64,)), "SnapshotRefused: "),
    ):
        said = tmp_path / "said"
        said.write_text("")
        told = {"ROLLOUT_TERMINATION_LOG": str(said), "ROLLOUT_ADOPT_ORDER": ask.model_dump_json()}
        command = [sys.executable, "-m", "rollout.entrypoints.errands.adopt"]
        subprocess.run(
            command, env={**os.environ, **told}, capture_output=True, timeout=120, check=False
        )
        assert words in said.read_text()
    assert said.read_text().startswith("SnapshotRefused: ")
