"""A disk that is full, was mounted read-only, or belongs to another: told in words, nothing half-made is listed, a repeat ends."""

import shutil
from errno import EACCES, ENOSPC, EROFS

import pytest
from crash_kit import CALLS_MAX, refused_at, whole_snapshots
from restore_kit import another, make_whole_run, step_of, take_snapshot
from snapshot_kit import make_run, open_at, snapshot

from rollout.objects.filesystem import FilesystemStore
from rollout.runs.snapshots.beginning import begin_with_snapshot
from rollout.snapshots.archive import store_archive, write_archive
from rollout.snapshots.collection import delete_unnamed, finish_deletions
from rollout.snapshots.saving import copy_snapshot

EVERY = pytest.mark.parametrize(
    ("errno", "word", "stride"),
    [
        pytest.param(ENOSPC, "no space left", 17, id="full"),
        pytest.param(EROFS, "Read-only file system", 23, id="read-only"),
        pytest.param(EACCES, "Permission denied", 7, id="another's", marks=pytest.mark.slow),
        pytest.param(ENOSPC, "no space left", 1, id="full, every call", marks=pytest.mark.slow),
        pytest.param(EROFS, "Read-only", 1, id="read-only, every call", marks=pytest.mark.slow),
    ],
)


@pytest.fixture
async def run(tmp_path):
    await make_run(tmp_path / "run")
    return tmp_path / "run"


def refusals(begin, errno, word, stride):
    """Of every call at which the disk may fail; each is told by what the disk said."""
    for call in range(0, CALLS_MAX, stride):
        words = refused_at(call, begin(call), errno)
        if words is None:
            assert call > 0
            return
        assert word in words
        yield call
    raise AssertionError(f"more than {CALLS_MAX} calls")


@EVERY
def test_a_save(run, tmp_path, signer, errno, word, stride):
    folders = {}

    def save(call):
        folders[call] = tmp_path / f"copy-{call}"
        shutil.copytree(run, folders[call], copy_function=shutil.copy)
        return lambda: snapshot(folders[call], signer)

    for call in refusals(save, errno, word, stride):
        found = whole_snapshots(folders[call] / "objects")
        made = snapshot(folders[call], signer).id
        assert found <= {made}
        assert whole_snapshots(folders[call] / "objects") == {made}
        shutil.rmtree(folders[call])


@EVERY
def test_a_copy_and_an_import(run, tmp_path, signer, errno, word, stride):
    made, source = snapshot(run, signer), FilesystemStore(run / "objects")
    file = tmp_path / "made.tar"
    write_archive(made, source, file)
    ways = {
        "copied": lambda place, _: copy_snapshot(source, place, made),
        "brought": lambda place, scratch: store_archive(file, place, scratch),
    }
    for name, bring in ways.items():

        def begin(call, name=name, bring=bring):
            folder = tmp_path / f"{name}-{call}"
            return lambda: bring(open_at(folder), tmp_path / f"scratch-{call}")

        for call in refusals(begin, errno, word, stride):
            assert whole_snapshots(tmp_path / f"{name}-{call}") <= {made.id}
            begin(call)()
            assert whole_snapshots(tmp_path / f"{name}-{call}") == {made.id}


@EVERY
def test_an_export(run, tmp_path, signer, errno, word, stride):
    made, source = snapshot(run, signer), FilesystemStore(run / "objects")
    first = tmp_path / "first.tar"
    write_archive(made, source, first)

    def begin(call):
        return lambda: write_archive(made, source, tmp_path / f"{call}.tar")

    for call in refusals(begin, errno, word, stride):
        begin(call)()
        assert (tmp_path / f"{call}.tar").read_bytes() == first.read_bytes()


@EVERY
def test_a_prune(run, tmp_path, signer, errno, word, stride):
    """A disk that is full lets what is on it be deleted, but the note of it be written; then nothing has gone."""
    old, new = snapshot(run, signer, 2), snapshot(run, signer, 4)
    folders = {}

    def prune(call):
        folders[call] = tmp_path / f"copy-{call}"
        shutil.copytree(run, folders[call], copy_function=shutil.copy)
        return lambda: delete_unnamed(
            open_at(folders[call] / "objects"), old.objects, manifests=[old.id]
        )

    for call in refusals(prune, errno, word, stride):
        place = open_at(folders[call] / "objects")
        assert new.id in whole_snapshots(folders[call] / "objects")
        finish_deletions(place)
        delete_unnamed(place, old.objects, manifests=[old.id])
        assert whole_snapshots(folders[call] / "objects") == {new.id}
        assert set(place.store.names()) >= new.objects.keys()


@pytest.fixture
async def whole_run(tmp_path):
    return await make_whole_run(tmp_path / "run")


@EVERY
def test_a_run_that_begins_with_one(whole_run, tmp_path, signer, errno, word, stride):
    made = take_snapshot(tmp_path / "run", signer)
    configs = {}

    def begin(call):
        configs[call] = another(whole_run, tmp_path / f"second-{call}", made)
        return lambda: begin_with_snapshot(configs[call])

    for call in refusals(begin, errno, word, stride):
        assert step_of(begin_with_snapshot(configs[call])) == made.header.step
    assert whole_snapshots(tmp_path / "run" / "objects") == {made.id}
