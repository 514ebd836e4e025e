"""A purge removes one object's snapshot and what nobody else names: killed at any call, its next process ends it."""

import shutil

import pytest
from crash_kit import every_call, whole_snapshots
from ledger_kit import IDENTITY
from snapshot_kit import make_run, open_at, snapshot

from rollout.errors import StoreError
from rollout.objects.filesystem import FilesystemStore
from rollout.runs.snapshots.purging import named_in_ledger, purge_snapshot
from rollout.snapshots import collection
from rollout.snapshots.place import SnapshotPlace
from rollout.snapshots.saving import copy_snapshot
from rollout_api.v1alpha1.storage import Storage
from rollout_api.worker import PurgeOrder, RunIdentity

MINE, OTHER = "11111111-aaaa", "22222222-bbbb"
JOB = "job-1"
CALLS_MAX = 200


def order(ledger="Gone", **changes):
    said = {"name": "small", "namespace": "default", "uid": IDENTITY.uid, **changes}
    return PurgeOrder(
        snapshot=said.pop("snapshot", MINE),
        run=RunIdentity(**{key: said[key] for key in ("name", "namespace", "uid")}),
        storage=Storage(uri="file:///nowhere"),
        ledger=ledger,
        ledger_path=said.get("ledger_path"),
    )


def purge(folder, ask=None, work=JOB, **more):
    return purge_snapshot(ask or order(), open_at(folder), frozenset, work, **more)


@pytest.fixture
async def run(tmp_path):
    await make_run(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def two(run, tmp_path, signer):
    """A bucket with the snapshots of two objects, and nothing else; the run is gone."""
    made = snapshot(run, signer, 2, f"early {MINE}"), snapshot(run, signer, 4, f"late {OTHER}")
    for one in made:
        copy_snapshot(FilesystemStore(run / "objects"), open_at(tmp_path / "bucket"), one)
    return tmp_path / "bucket", *made


def test_others_keep_what_they_share_with_it(two):
    bucket, mine, other = two
    done = purge(bucket)
    alone = mine.objects.keys() - other.objects.keys()
    assert alone
    assert mine.objects.keys() & other.objects.keys()
    assert (done.snapshots, done.objects) == (1, len(alone))
    assert done.freed_bytes == sum(mine.objects[one] for one in alone)
    assert done.kept == len(mine.objects) - len(alone)
    assert whole_snapshots(bucket) == {other.id}
    assert set(open_at(bucket).store.names()) == set(other.objects)


def test_a_second_one_finds_nothing_to_do(two):
    bucket, _, other = two
    purge(bucket)
    done = purge(bucket, work="job-2")
    assert (done.snapshots, done.objects, done.freed_bytes) == (0, 0, 0)
    assert whole_snapshots(bucket) == {other.id}


def test_what_the_runs_ledger_names_stays(run, signer):
    made = snapshot(run, signer, 4, f"late {MINE}")
    before = set(open_at(run / "objects").store.names())
    ask = order("Kept", ledger_path=str(run / "ledger.db"))
    done = purge_snapshot(ask, open_at(run / "objects"), named_in_ledger(ask), JOB)
    assert done.snapshots == 1
    assert done.kept > 0
    left = set(open_at(run / "objects").store.names())
    assert named_in_ledger(ask)() & before <= left
    assert before - left == made.objects.keys() - named_in_ledger(ask)()


def test_the_objects_of_a_run_that_goes_on_are_its_own_to_delete(two):
    bucket, mine, other = two
    done = purge(bucket, order("Alive"))
    assert done.left_to_run
    assert whole_snapshots(bucket) == {other.id}
    assert set(open_at(bucket).store.names()) == mine.objects.keys() | other.objects.keys()


@pytest.mark.parametrize("ledger", ["Gone", "Alive"])
def test_killed_at_any_call_it_is_ended_by_the_next_process_of_its_work(two, tmp_path, ledger):
    bucket, mine, other = two
    purge(shutil.copytree(bucket, tmp_path / "whole"), order(ledger))
    wanted = set(open_at(tmp_path / "whole").store.names())
    left = set()

    def begin(call):
        folder = shutil.copytree(bucket, tmp_path / f"copy-{call}", copy_function=shutil.copy)
        return lambda: purge(folder, order(ledger))

    for call in every_call(begin):
        folder = tmp_path / f"copy-{call}"
        there = whole_snapshots(folder)
        assert other.id in there
        left.add((mine.id in there, set(open_at(folder).store.names()) == wanted))
        purge(folder, order(ledger))
        assert whole_snapshots(folder) == {other.id}
        assert list(open_at(folder).named.entries(collection.CONDEMNED)) == []
        assert set(open_at(folder).store.names()) == wanted
        shutil.rmtree(folder)
    assert (False, ledger == "Alive") in left, "no kill fell behind the manifest"


class Failing:
    """Passes calls on, and fails at the call number ``at`` of all: before it is done, or after it."""

    def __init__(self, inner, left, *, after):
        self._inner, self._left, self._after = inner, left, after

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args, **more):
            self._left[0] -= 1
            fails = self._left[0] == 0
            if fails and not self._after:
                raise StoreError("injected: the store is away")
            answer = found(*args, **more)
            if fails:
                raise StoreError("injected: the answer was lost")
            return answer

        return call


@pytest.mark.parametrize("after", [False, True])
def test_a_store_that_fails_at_any_call_costs_a_repeat_and_nothing_else(two, tmp_path, after):
    bucket, _, other = two
    for at in range(1, CALLS_MAX):
        folder = shutil.copytree(bucket, tmp_path / f"copy-{at}")
        whole, left = open_at(folder), [at]
        place = SnapshotPlace(
            store=Failing(whole.store, left, after=after),
            named=Failing(whole.named, left, after=after),
        )
        try:
            purge_snapshot(order(), place, frozenset, JOB)
        except StoreError:
            assert other.id in whole_snapshots(folder)
        purge(folder)
        assert whole_snapshots(folder) == {other.id}
        assert set(whole.store.names()) == set(other.objects)
        assert list(whole.named.entries(collection.CONDEMNED)) == []
        shutil.rmtree(folder)
        if left[0] > 0:
            break
    assert 10 < at < CALLS_MAX - 1


def test_a_save_at_every_call_of_a_purge_has_all_its_objects(two, tmp_path, run, monkeypatch):
    """The saver waits for no deleter here: it is told, and what it was promised is whole."""
    monkeypatch.setattr(collection, "WAIT_SECONDS", 0.0)
    bucket, mine, other = two
    refused = 0
    for at in range(1, CALLS_MAX):
        folder = shutil.copytree(bucket, tmp_path / f"copy-{at}")
        saved, left = set(), [at]

        def save(folder=folder, saved=saved):
            try:
                copy_snapshot(FilesystemStore(run / "objects"), open_at(folder), mine)
                saved.add(mine.id)
            except StoreError:
                saved.add("refused")

        place = SnapshotPlace(
            store=Meeting(open_at(folder).store, left, save),
            named=Meeting(open_at(folder).named, left, save),
        )
        purge_snapshot(order(), place, frozenset, JOB)
        assert whole_snapshots(folder) >= {other.id}
        refused += "refused" in saved
        shutil.rmtree(folder)
        if left[0] > 0:
            break
    assert refused > 3


class Meeting:
    """Passes calls on, and lets ``other`` happen before the call number ``at``."""

    def __init__(self, inner, left, other):
        self._inner, self._left, self._other = inner, left, other

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args, **more):
            self._left[0] -= 1
            if self._left[0] == 0:
                self._other()
            return found(*args, **more)

        return call


def test_another_work_takes_over_only_when_the_one_before_must_have_stopped(two):
    """Its process may only be slow: what it was about to delete, nobody else deletes meanwhile."""
    bucket, mine, other = two
    place = open_at(bucket)
    at = 1_000_000.0
    left = collection.Condemned(
        manifests=(mine.id,), objects=tuple(mine.objects), at=at, host="elsewhere", work=JOB
    )
    collection._write(place.named, collection.CONDEMNED, left)
    collection.remove_manifest(place.named, mine.id)
    purge(bucket, work="job-2", clock=lambda: at + 60)
    assert set(place.store.names()) > set(other.objects)
    purge(bucket, work="", clock=lambda: at + 60)
    assert set(place.store.names()) > set(other.objects)
    purge(bucket, work="job-2", clock=lambda: at + collection.CONDEMNED_SECONDS_MAX + 1)
    assert set(place.store.names()) == set(other.objects)


@pytest.mark.parametrize(
    "changes",
    [
        {"snapshot": OTHER[:8]},
        {"snapshot": f"early {MINE}"},
        {"snapshot": "early"},
        {"namespace": "another-tenant"},
        {"uid": "another-run"},
    ],
)
def test_an_order_that_names_what_is_anothers_removes_nothing(two, changes):
    bucket, mine, other = two
    before = set(open_at(bucket).store.names())
    assert purge(bucket, order(**changes)).snapshots == 0
    assert whole_snapshots(bucket) == {mine.id, other.id}
    assert set(open_at(bucket).store.names()) == before


def test_where_a_manifest_cannot_be_read_no_object_goes(two):
    """What it names is not known; the error says which file it is."""
    bucket, mine, other = two
    (bucket / "snapshots" / "manifests" / f"{'0' * 64}.json").write_text("{}")
    with pytest.raises(StoreError, match="0" * 64):
        purge(bucket)
    assert set(open_at(bucket).store.names()) == mine.objects.keys() | other.objects.keys()
