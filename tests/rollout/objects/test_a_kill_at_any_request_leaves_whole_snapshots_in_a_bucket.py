"""Killed before any request to a bucket, real processes: what is listed is whole, and a repeat ends what was begun."""

import shutil
import uuid

import pytest
from crash_kit import every_call, whole_in
from restore_kit import another, make_whole_run, step_of, take_snapshot
from snapshot_kit import header_of, make_run, snapshot, take

from rollout.objects.filesystem import FilesystemStore
from rollout.runs.snapshots.beginning import begin_with_snapshot
from rollout.runs.snapshots.places import WhereToLook, find_snapshot, open_object_path
from rollout.snapshots.archive import store_archive, write_archive
from rollout.snapshots.collection import delete_unnamed, finish_deletions
from rollout.snapshots.saving import copy_snapshot, save_snapshot
from rollout.snapshots.signing import open_signer
from rollout_api.v1alpha1.storage import Storage

LATER = 1e12
"""When those who died on a machine of which nothing is known are given up."""
STRIDES = pytest.mark.parametrize(
    "stride", [13, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "every"]
)
pytestmark = [STRIDES, pytest.mark.timeout(1200)]


@pytest.fixture(params=["gs", pytest.param("s3", marks=[pytest.mark.process, pytest.mark.slow])])
def bucket(request, new_bucket, tmp_path, monkeypatch):
    """Places of one bucket, by name, as a process that begins now opens them."""
    monkeypatch.setenv("ROLLOUT_SCRATCH", str(tmp_path / "cache"))
    made = new_bucket(request.param)

    def where(place):
        return WhereToLook(object_path=f"{made.uri}/team/{place}", endpoint=made.endpoint)

    return where


@pytest.fixture
def signer(tmp_path):
    return open_signer(tmp_path / "config" / "snapshot.key")


@pytest.fixture
async def run(tmp_path):
    await make_run(tmp_path / "run")
    return tmp_path / "run"


def opened(where):
    return open_object_path(where, must_exist=False).open()


def test_a_save(bucket, run, signer, stride):
    anchor, taken = take(run)
    source = FilesystemStore(run / "objects")

    def save(call):
        return lambda: save_snapshot(opened(bucket(f"{call}")), header_of(anchor), taken, signer)

    def prepare(call):
        place = opened(bucket(f"{call}"))
        for digest in {one for layer in taken for one in layer.present.values()}:
            place.store.put_file(source.path(digest))
        return save(call)

    seen = set()
    for call in every_call(prepare, stride):
        found = whole_in(opened(bucket(f"{call}")))
        seen.add(len(found))
        made = save(call)().id
        assert found <= {made}
        assert whole_in(opened(bucket(f"{call}"))) == {made}
    assert seen == {0, 1} or stride > 1


def test_a_copy_and_an_import(bucket, run, signer, tmp_path, stride):
    made, source = snapshot(run, signer), FilesystemStore(run / "objects")
    file = tmp_path / "made.tar"
    write_archive(made, source, file)
    ways = {
        "copied": lambda place: copy_snapshot(source, place, made),
        "brought": lambda place: store_archive(file, place, tmp_path / uuid.uuid4().hex),
    }
    for name, bring in ways.items():

        def begin(call, name=name, bring=bring):
            return lambda: bring(opened(bucket(f"{name}-{call}")))

        for call in every_call(begin, stride):
            assert whole_in(opened(bucket(f"{name}-{call}"))) <= {made.id}
            begin(call)()
            assert whole_in(opened(bucket(f"{name}-{call}"))) == {made.id}


def test_an_export(bucket, run, signer, tmp_path, stride):
    made = snapshot(run, signer)
    copy_snapshot(FilesystemStore(run / "objects"), opened(bucket("kept")), made)
    first = tmp_path / "first.tar"
    write_archive(made, FilesystemStore(run / "objects"), first)

    def begin(call):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        source = find_snapshot(made.id, bucket("kept")).place.source
        return lambda: write_archive(made, source, tmp_path / f"{call}.tar")

    for call in every_call(begin, stride):
        target = tmp_path / f"{call}.tar"
        assert not target.exists() or target.read_bytes() == first.read_bytes()
        begin(call)()
        assert target.read_bytes() == first.read_bytes()


def test_a_prune_and_its_collection(bucket, run, signer, stride):
    old, new = snapshot(run, signer, 2), snapshot(run, signer, 4)
    source = FilesystemStore(run / "objects")

    def prune(place):
        finish_deletions(place, clock=lambda: LATER)
        if old.id in whole_in(place):
            delete_unnamed(place, old.objects, manifests=[old.id])

    def prepare(call):
        place = opened(bucket(f"{call}"))
        for one in (old, new):
            copy_snapshot(source, place, one)
        return lambda: prune(opened(bucket(f"{call}")))

    for call in every_call(prepare, stride):
        place = opened(bucket(f"{call}"))
        assert new.id in whole_in(place)
        prune(place)
        assert whole_in(place) == {new.id}
        assert set(place.store.names()) == new.objects.keys()
        assert list(place.named.entries("snapshots/condemned/")) == []


@pytest.fixture
async def whole_run(tmp_path):
    return await make_whole_run(tmp_path / "whole")


def test_a_run_that_begins_with_one(bucket, whole_run, signer, tmp_path, stride):
    made = take_snapshot(tmp_path / "whole", signer)
    kept = bucket("kept")
    copy_snapshot(FilesystemStore(tmp_path / "whole" / "objects"), opened(kept), made)

    def prepare(call):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        config = another(whole_run, tmp_path / f"second-{call}", made)
        where = bucket(f"{call}")
        storage = Storage.model_validate({"uri": where.object_path, "endpoint": where.endpoint})
        configs[call] = config.model_copy(
            update={
                "spec": config.spec.model_copy(update={"storage": storage}),
                "restore": config.restore.model_copy(update={"place": kept.object_path}),
            }
        )
        return lambda: begin_with_snapshot(configs[call])

    configs = {}
    for call in every_call(prepare, 1 if stride == 1 else 41):
        assert step_of(begin_with_snapshot(configs[call])) == made.header.step
    assert whole_in(opened(kept)) == {made.id}
