"""What the pod of a purge does in a bucket of S3 or of Google, from the order that the operator gives it to its last word."""

import os
import subprocess
import sys

import pytest
from ledger_kit import IDENTITY
from objects_kit import SERVERS
from snapshot_kit import make_run, snapshot

from rollout.entrypoints.errands.purge import open_snapshot_place, purge
from rollout.errors import SpecError
from rollout.objects.filesystem import FilesystemStore
from rollout.runs.snapshots.catalogue import list_catalogue
from rollout.runs.snapshots.places import WhereToLook
from rollout.snapshots.saving import copy_snapshot
from rollout.snapshots.signing import open_signer
from rollout.snapshots.verifying import find_snapshot_damage
from rollout_api.v1alpha1.storage import Storage
from rollout_api.worker import PurgeOrder, RunIdentity

MINE, OTHER = "11111111-aaaa", "22222222-bbbb"


@pytest.fixture(params=SERVERS)
def storage(request, new_bucket, tmp_path, monkeypatch):
    """The place of a namespace in a bucket, as a pod is told it."""
    monkeypatch.setenv("ROLLOUT_SCRATCH", str(tmp_path / "cache"))
    made = new_bucket(request.param)
    return Storage.model_validate({"uri": f"{made.uri}/team/default", "endpoint": made.endpoint})


def order(storage, uid=IDENTITY.uid, ledger="Gone"):
    return PurgeOrder(
        snapshot=MINE,
        run=RunIdentity(name="small", namespace="default", uid=uid),
        storage=storage,
        ledger=ledger,
    )


def environment(ask):
    return {"ROLLOUT_PURGE_ORDER": ask.model_dump_json(by_alias=True, exclude_none=True)}


@pytest.fixture
async def two(storage, tmp_path):
    """Snapshots of two objects in the place of one run, and a copy of the first in the place of another run."""
    await make_run(tmp_path / "run")
    signer = open_signer(tmp_path / "config" / "snapshot.key")
    made = [
        snapshot(tmp_path / "run", signer, step, f"x {uid}")
        for step, uid in ((2, MINE), (4, OTHER))
    ]
    source = FilesystemStore(tmp_path / "run" / "objects")
    for one in made:
        copy_snapshot(source, open_snapshot_place(order(storage)), one)
    copy_snapshot(source, open_snapshot_place(order(storage, "another-run")), made[0])
    return made


def ids(storage, uid=IDENTITY.uid):
    where = WhereToLook(object_path=f"{storage.uri}/{uid}", endpoint=storage.endpoint)
    return [one.manifest.id for one in list_catalogue(where).found]


def test_the_snapshot_goes_with_what_nobody_else_names(two, storage):
    mine, other = two
    done = purge(environment(order(storage)))
    assert (done.snapshots, done.objects) == (1, len(mine.objects.keys() - other.objects.keys()))
    assert ids(storage) == [other.id]
    place = open_snapshot_place(order(storage))
    assert set(place.store.names()) == set(other.objects)
    assert list(find_snapshot_damage(other, place.store)) == []
    assert purge(environment(order(storage))).objects == 0


def test_the_same_snapshot_in_the_place_of_another_run_stays(two, storage):
    mine, _ = two
    purge(environment(order(storage)))
    assert ids(storage, "another-run") == [mine.id]
    assert purge(environment(order(storage, "another-run"))).snapshots == 0
    assert ids(storage, "another-run") == [mine.id]
    left = open_snapshot_place(order(storage, "another-run")).store
    assert list(find_snapshot_damage(mine, left)) == []


def test_an_order_that_is_none_is_said_to_be():
    with pytest.raises(SpecError, match="ROLLOUT_PURGE_ORDER"):
        purge({})


@pytest.mark.process
def test_the_last_word_of_the_pod_says_what_became_of_it(s3_endpoint, bucket, tmp_path):
    """The operator reads no log: this is all that it learns."""
    for name, code, words in (
        (bucket, 0, "0 snapshots and 0 objects removed"),
        ("no-such-bucket", 3, "NoSuchBucket"),
    ):
        said = tmp_path / name
        said.touch()
        storage = Storage.model_validate({"uri": f"s3://{name}/team", "endpoint": s3_endpoint})
        told = {"ROLLOUT_TERMINATION_LOG": str(said), "ROLLOUT_SCRATCH": str(tmp_path / "cache")}
        env = {**os.environ, **told, **environment(order(storage))}
        command = [sys.executable, "-m", "rollout.entrypoints.errands.purge"]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert words in said.read_text(), (done.stdout, done.stderr)
        assert (done.returncode == 0) is (code == 0)
