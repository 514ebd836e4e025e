"""``prune`` of all of a run's snapshots, killed at any change of the file system: the same command ends it."""

import shutil

import pytest
from crash_kit import every_call, whole_snapshots
from ledger_kit import IDENTITY
from restore_kit import make_whole_run
from snapshot_kit import open_at, snapshot

from rollout.runs.snapshots.places import WhereToLook
from rollout.runs.snapshots.pruning import prune


@pytest.fixture
async def run(tmp_path):
    await make_whole_run(tmp_path / "run")
    return tmp_path / "run"


def prune_all(folder):
    where = WhereToLook(storage_path=str(folder))
    return prune(where, IDENTITY.uid, keep_last=0, keep_labeled=False)


def test_also_where_no_snapshot_is_left_to_remove(run, tmp_path, signer):
    before = set(open_at(run / "objects").store.names())
    made = snapshot(run, signer)
    own = made.objects.keys() - before
    assert own
    folders, left = {}, set()

    def begin(call):
        folders[call] = tmp_path / f"copy-{call}"
        shutil.copytree(run, folders[call], copy_function=shutil.copy)
        return lambda: prune_all(folders[call])

    for call in every_call(begin):
        place = open_at(folders[call] / "objects")
        there = bool(whole_snapshots(folders[call] / "objects"))
        left.add((there, any(map(place.store.has, own))))
        prune_all(folders[call])
        assert whole_snapshots(folders[call] / "objects") == set()
        assert list(place.named.entries("snapshots/condemned/")) == []
        assert set(place.store.names()) == before
        shutil.rmtree(folders[call])
    assert (False, True) in left, "no kill fell between the manifest and its objects"
