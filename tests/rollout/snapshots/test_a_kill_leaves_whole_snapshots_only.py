"""Killed at any change of the file system: what is listed is whole, what was acknowledged is there, and a repeat ends."""

import shutil

import msgspec
import pytest
from crash_kit import ALL_OR_SOME, every_call, killed_at, whole_snapshots
from snapshot_kit import make_run, open_at, snapshot

from rollout.ledger.sqlite.reader import LedgerReader
from rollout.objects.filesystem import FilesystemStore
from rollout.snapshots.archive import store_archive, write_archive
from rollout.snapshots.collection import Condemned, delete_unnamed, finish_deletions
from rollout.snapshots.guard import SnapshotGuard
from rollout.snapshots.layers.train_state import objects_of_anchor
from rollout.snapshots.place import find_manifest
from rollout.snapshots.saving import copy_snapshot
from rollout.snapshots.signing import open_signer


@pytest.fixture
async def run(tmp_path):
    await make_run(tmp_path / "run")
    return tmp_path / "run"


def copied(run, tmp_path, call):
    folder = tmp_path / f"copy-{call}"
    shutil.copytree(run, folder, copy_function=shutil.copy)
    return folder


def test_a_save(run, tmp_path, signer):
    expected = snapshot(copied(run, tmp_path, "first"), signer).id
    folders = {}

    def save(call):
        folders[call] = copied(run, tmp_path, call)
        return lambda: snapshot(folders[call], signer)

    seen = set()
    for call in every_call(save):
        found = whole_snapshots(folders[call] / "objects")
        assert found <= {expected}
        seen.add(len(found))
        assert snapshot(folders[call], signer).id == expected
        assert whole_snapshots(folders[call] / "objects") == {expected}
        shutil.rmtree(folders[call])
    assert seen == {0, 1}
    assert whole_snapshots(folders[max(folders)] / "objects") == {expected}


def test_the_making_of_the_key(tmp_path):
    def make(call):
        return lambda: open_signer(tmp_path / f"config-{call}" / "snapshot.key")

    for call in range(20):
        if not killed_at(call, make(call)):
            break
        path = tmp_path / f"config-{call}" / "snapshot.key"
        public = open_signer(path).public
        assert open_signer(path).public == public
    assert call > 3


def prune(folder, old, keep=frozenset()):
    place = open_at(folder / "objects")
    finish_deletions(place, lambda: keep)
    manifest = find_manifest(place.named, old)
    delete_unnamed(place, manifest.objects, manifests=[old], keep=lambda: keep)


def test_a_prune(run, tmp_path, signer):
    old, new = snapshot(run, signer, 2), snapshot(run, signer, 4)
    own, shared = old.objects.keys() - new.objects.keys(), old.objects.keys() & new.objects.keys()
    assert own and shared
    folders = {}

    def begin(call):
        folders[call] = copied(run, tmp_path, call)
        return lambda: prune(folders[call], old.id)

    seen = set()
    for call in every_call(begin):
        place = open_at(folders[call] / "objects")
        found = whole_snapshots(folders[call] / "objects")
        assert new.id in found
        seen.add(len(found))
        finish_deletions(place)
        if old.id in whole_snapshots(folders[call] / "objects"):
            prune(folders[call], old.id)
        assert whole_snapshots(folders[call] / "objects") == {new.id}
        assert not any(map(place.store.has, own))
        assert list(place.named.entries("snapshots/condemned/")) == []
        shutil.rmtree(folders[call])
    assert seen == {1, 2}


def test_what_the_ledger_names_outlives_its_snapshots(run, signer):
    only = snapshot(run, signer, 4)
    place = open_at(run / "objects")
    kept = set(list(only.objects)[:2])

    prune(run, only.id, keep=kept)

    assert whole_snapshots(run / "objects") == set()
    assert {name for name in only.objects if place.store.has(name)} == kept


def test_an_export(run, tmp_path, signer):
    made, store = snapshot(run, signer), FilesystemStore(run / "objects")
    first = tmp_path / "first.tar"
    write_archive(made, store, first)
    for call in every_call(
        lambda call: lambda: write_archive(made, store, tmp_path / f"{call}.tar")
    ):
        target = tmp_path / f"{call}.tar"
        assert not target.exists() or target.read_bytes() == first.read_bytes()
        write_archive(made, store, target)
        assert target.read_bytes() == first.read_bytes()
        assert [one.name for one in tmp_path.glob(".*.partial")] == []


@ALL_OR_SOME
def test_an_import(run, tmp_path, signer, stride):
    made, source = snapshot(run, signer), FilesystemStore(run / "objects")
    file = tmp_path / "made.tar"
    write_archive(made, source, file)

    def bring(call):
        place = tmp_path / f"place-{call}"
        return lambda: store_archive(file, open_at(place), tmp_path / f"scratch-{call}")

    check_calls(bring, tmp_path, made.id, stride)


@ALL_OR_SOME
def test_a_copy(run, tmp_path, signer, stride):
    made, source = snapshot(run, signer), FilesystemStore(run / "objects")

    def copy(call):
        return lambda: copy_snapshot(source, open_at(tmp_path / f"place-{call}"), made)

    check_calls(copy, tmp_path, made.id, stride)


def check_calls(begin, tmp_path, expected, stride):
    for call in every_call(begin, stride):
        assert whole_snapshots(tmp_path / f"place-{call}") <= {expected}
        begin(call)()
        assert whole_snapshots(tmp_path / f"place-{call}") == {expected}
        shutil.rmtree(tmp_path / f"place-{call}")


def test_a_collection_of_what_another_deleter_left(run, tmp_path, signer):
    """The first deleter died right after it had written down what goes; so do all who finish that, but the last."""
    old, new = snapshot(run, signer, 2), snapshot(run, signer, 4)
    own = old.objects.keys() - new.objects.keys()
    note = Condemned(manifests=(old.id,), objects=tuple(old.objects), at=0.0, host="another")
    open_at(run / "objects").named.create("snapshots/condemned/1.json", msgspec.json.encode(note))
    folders, left = {}, set()

    def collect(call):
        folders[call] = copied(run, tmp_path, call)
        return lambda: finish_deletions(open_at(folders[call] / "objects"))

    for call in every_call(collect):
        place = open_at(folders[call] / "objects")
        assert new.id in whole_snapshots(folders[call] / "objects")
        left.add(sum(map(place.store.has, own)))
        finish_deletions(place)
        assert whole_snapshots(folders[call] / "objects") == {new.id}
        assert not any(map(place.store.has, own))
        assert list(place.named.entries("snapshots/condemned/")) == []
        shutil.rmtree(folders[call])
    assert left == set(range(len(own) + 1))


def test_a_run_that_deletes_its_anchor(run, tmp_path, signer):
    kept = snapshot(run, signer, 4)
    with LedgerReader(run / "ledger.db") as ledger:
        anchor = next(one for one in ledger.state().anchors if one.step == 2)
    objects = set(objects_of_anchor(anchor).values())
    folders = {}

    def delete(call):
        folders[call] = copied(run, tmp_path, call)
        return lambda: retire(folders[call], objects)

    for call in every_call(delete):
        assert whole_snapshots(folders[call] / "objects") == {kept.id}
        retire(folders[call], objects)
        store = FilesystemStore(folders[call] / "objects")
        assert {one for one in objects if store.has(one)} == objects & kept.objects.keys()
        assert whole_snapshots(folders[call] / "objects") == {kept.id}
        shutil.rmtree(folders[call])


def retire(folder, objects):
    place = open_at(folder / "objects")
    guard = SnapshotGuard(place.store, place.named)
    guard.note(objects)
    guard.delete(objects)
