"""What the commands do with a place, where that is a bucket of S3 or of Google: another installation finds it all there."""

import shutil
from dataclasses import replace

import pytest
from ledger_kit import IDENTITY
from objects_kit import SERVERS
from snapshot_kit import make_run, open_at, snapshot

from rollout.errors import SnapshotRefused
from rollout.objects.filesystem import FilesystemStore
from rollout.objects.reading import ObjectFiles
from rollout.runs.snapshots.catalogue import list_catalogue
from rollout.runs.snapshots.places import WhereToLook, find_snapshot, open_object_path
from rollout.runs.snapshots.pruning import prune
from rollout.runs.snapshots.restoring import prepare_restore
from rollout.snapshots.archive import store_archive, write_archive
from rollout.snapshots.saving import copy_snapshot
from rollout.snapshots.signing import open_signer
from rollout.snapshots.verifying import find_snapshot_damage


@pytest.fixture(params=SERVERS)
def where(request, new_bucket, tmp_path, monkeypatch):
    """The bucket, as a command names it; copies of its objects lie in a scratch folder."""
    monkeypatch.setenv("ROLLOUT_SCRATCH", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another installation"))
    made = new_bucket(request.param)
    return WhereToLook(object_path=f"{made.uri}/team/kept", endpoint=made.endpoint)


@pytest.fixture
def signer(tmp_path):
    return open_signer(tmp_path / "config" / "snapshot.key")


@pytest.fixture
async def run(tmp_path):
    await make_run(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def two(run, where, signer):
    """A run's snapshots of two steps, which the bucket has and this machine has no more."""
    made = [snapshot(run, signer, step) for step in (2, 4)]
    source, target = FilesystemStore(run / "objects"), open_bucket(where)
    for one in made:
        assert copy_snapshot(source, target, one) > 0
    assert copy_snapshot(source, target, made[-1]) == 0
    shutil.rmtree(run)
    return made


def open_bucket(where):
    return open_object_path(where, must_exist=False).open()


def ids(where):
    return [one.manifest.id for one in list_catalogue(where).found]


def test_they_are_listed_shown_and_verified_from_there_alone(two, where):
    old, new = two
    assert ids(where) == [new.id, old.id]
    for one in two:
        found = find_snapshot(one.id, where)
        assert found.manifest == one
        assert list(find_snapshot_damage(one, found.place.source)) == []
    with pytest.raises(SnapshotRefused, match="snapshot not found: " + "0" * 64):
        find_snapshot("0" * 64, where)


def test_a_restore_reads_the_whole_state_of_whom_it_trusts(two, where, signer):
    new = two[-1]
    with pytest.raises(SnapshotRefused, match="trust"):
        prepare_restore(new.id, where)
    restore = prepare_restore(new.id, replace(where, trust=(signer.public,)))
    assert (restore.anchor.step, restore.cut.step) == (4, 4)
    assert restore.manifest == new


def test_a_prune_leaves_what_the_newest_needs_and_nothing_else(two, where):
    old, new = two
    done = prune(where, IDENTITY.uid, keep_last=1, keep_labeled=False)
    assert [one.id for one in done.removed] == [old.id]
    assert done.num_objects == len(old.objects.keys() - new.objects.keys())
    place = open_bucket(where)
    assert ids(where) == [new.id]
    assert set(place.store.names()) == set(new.objects)
    assert list(find_snapshot_damage(new, place.store)) == []


def test_a_prefix_beside_it_has_none_of_them_and_loses_none(two, where):
    beside = replace(where, object_path=where.object_path + "-too")
    assert ids(beside) == []
    assert prune(beside, IDENTITY.uid, keep_last=0, keep_labeled=False).removed == ()
    assert len(ids(where)) == 2


def test_one_goes_through_a_file_into_another_bucket(two, where, tmp_path):
    new, file = two[-1], tmp_path / "new.tar"
    write_archive(new, find_snapshot(new.id, where).place.source, file)
    other = replace(where, object_path=where.object_path + "/other")
    store_archive(file, open_bucket(other), tmp_path / "scratch")
    assert ids(other) == [new.id]
    assert list(find_snapshot_damage(new, find_snapshot(new.id, other).place.source)) == []
    folder = open_at(tmp_path / "folder")
    copy_snapshot(find_snapshot(new.id, other).place.source, folder, new)
    assert list(find_snapshot_damage(new, ObjectFiles(tmp_path / "folder"))) == []
