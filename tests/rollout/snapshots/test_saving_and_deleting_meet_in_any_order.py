"""Nothing reachable is deleted: at every step of a deletion another process saves, and at every step of a save it deletes."""

import pytest
from crash_kit import whole_snapshots
from snapshot_kit import make_run, open_at, snapshot

from rollout.errors import StoreError
from rollout.objects.filesystem import FilesystemStore
from rollout.snapshots import collection
from rollout.snapshots.collection import delete_unnamed
from rollout.snapshots.guard import SnapshotGuard
from rollout.snapshots.place import SnapshotPlace, find_manifest
from rollout.snapshots.saving import copy_snapshot

STEPS_MAX = 200


class Meeting:
    """Passes calls on, and lets ``other`` happen before the call number ``at``."""

    def __init__(self, inner, turn):
        self._inner, self._turn = inner, turn

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args, **more):
            self._turn.pass_by()
            return found(*args, **more)

        return call


class Turn:
    def __init__(self, at, other):
        self._left, self._other = at, other
        self.met = False

    def pass_by(self):
        if self._left == 0:
            self.met = True
            self._other()
        self._left -= 1


@pytest.fixture
async def pair(tmp_path, signer, monkeypatch):
    """Two snapshots of one run in a place of their own, and where they come from."""
    monkeypatch.setattr(collection, "WAIT_SECONDS", 0.0)
    await make_run(tmp_path / "run")
    made = snapshot(tmp_path / "run", signer, 2), snapshot(tmp_path / "run", signer, 4)
    return FilesystemStore(tmp_path / "run" / "objects"), *made


def between(place, turn):
    return SnapshotPlace(store=Meeting(place.store, turn), named=Meeting(place.named, turn))


def delete(place, old):
    delete_unnamed(place, old.objects, manifests=[old.id])


def test_a_save_at_every_step_of_a_deletion(pair, tmp_path):
    source, old, new = pair
    refused = 0
    for at in range(STEPS_MAX):
        place = open_at(tmp_path / f"place-{at}")
        copy_snapshot(source, place, old)
        saved = []

        def save(place=place, saved=saved):
            try:
                copy_snapshot(source, place, new)
                saved.append(new.id)
            except StoreError:
                saved.append(None)

        turn = Turn(at, save)
        delete(between(place, turn), old)
        if not turn.met:
            break
        refused += saved == [None]
        assert whole_snapshots(tmp_path / f"place-{at}") == {one for one in saved if one}
        copy_snapshot(source, place, new)
        assert whole_snapshots(tmp_path / f"place-{at}") == {new.id}
    assert at > 10
    assert refused > 5  # while the deletion went on, nothing was promised


def test_a_deletion_at_every_step_of_a_save(pair, tmp_path):
    source, old, new = pair
    for at in range(STEPS_MAX):
        place = open_at(tmp_path / f"place-{at}")
        copy_snapshot(source, place, old)
        turn = Turn(at, lambda place=place: delete(place, old))
        copy_snapshot(source, between(place, turn), new)
        if not turn.met:
            break
        assert whole_snapshots(tmp_path / f"place-{at}") == {new.id}
    assert at > 10


def test_the_same_snapshot_saved_while_it_is_removed(pair, tmp_path):
    source, old, _ = pair
    for at in range(STEPS_MAX):
        place = open_at(tmp_path / f"place-{at}")
        copy_snapshot(source, place, old)
        turn = Turn(at, lambda place=place: delete(place, old))
        copy_snapshot(source, between(place, turn), old)
        assert whole_snapshots(tmp_path / f"place-{at}") <= {old.id}
        if not turn.met:
            break
    assert at > 10


def test_a_run_spares_what_its_snapshots_name(pair, tmp_path):
    _, old, new = pair
    place = open_at(tmp_path / "run" / "objects")
    guard = SnapshotGuard(place.store, place.named)
    guard.note(old.objects)
    plain = place.store.put(b"of a version that nobody anchored")

    guard.delete([*old.objects, plain])

    assert not place.store.has(plain)
    assert guard.named() >= old.objects.keys() | new.objects.keys()
    assert whole_snapshots(tmp_path / "run" / "objects") == {old.id, new.id}


def test_what_cannot_be_read_keeps_everything(pair, tmp_path):
    source, old, _ = pair
    place = open_at(tmp_path / "place")
    copy_snapshot(source, place, old)
    place.named.create(f"snapshots/manifests/{'0' * 64}.json", b"{}")

    with pytest.raises(StoreError, match="cannot be read"):
        delete(place, old)
    assert find_manifest(place.named, old.id) == old
    assert all(map(place.store.has, old.objects))
