"""The power goes at any flush, with all that was not flushed: what is listed is whole, and what was acknowledged is there."""

import os
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
from crash_kit import whole_snapshots
from restore_kit import another, make_whole_run, take_snapshot
from snapshot_kit import make_run, open_at, snapshot

from rollout.ledger.sqlite.reader import LedgerReader
from rollout.objects.filesystem import FilesystemStore
from rollout.runs.snapshots.beginning import begin_with_snapshot
from rollout.snapshots.archive import store_archive, write_archive
from rollout.snapshots.collection import delete_unnamed, finish_deletions
from rollout.snapshots.layers.train_state import objects_of_anchor
from rollout.snapshots.place import find_manifest
from rollout.snapshots.saving import copy_snapshot

sys.path.append(str(Path(__file__).parents[1] / "simulation"))

FLUSHES_MAX = 200


class CutError(BaseException):
    """The power goes: nothing that runs notices."""


class Power:
    """Passes flushes on to a disk that forgets, until one does not happen."""

    def __init__(self, disk, flushes):
        self._disk, self._left = disk, flushes
        self._flush = os.fsync

    def fsync(self, handle):
        if self._left == 0:
            raise CutError
        self._left -= 1
        self._flush(handle)
        self._disk.fsync(handle)


def in_child(ask):
    """What a process of its own answers: what it held open goes with it."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = int(ask())
        finally:
            os._exit(code)
    answer = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert answer in {0, 1}
    return bool(answer)


@pytest.fixture
def cut_at(monkeypatch):
    def cut(folder, flushes, operation, spared="-"):
        """Whether the power went before the operation ended; either way, what was not flushed is gone."""
        from power import Disk

        disk = Disk(folder, spared)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", Power(disk, flushes).fsync)
            try:
                operation()
            except CutError:
                return True
            else:
                return False
            finally:
                disk.cut()

    return cut


@pytest.fixture
async def run(tmp_path):
    await make_run(tmp_path / "run")
    return tmp_path / "run"


def test_while_it_is_saved(run, tmp_path, signer, cut_at):
    seen = set()
    for flushes in range(FLUSHES_MAX):
        folder = tmp_path / "copy"
        shutil.copytree(run, folder, copy_function=shutil.copy)
        went = cut_at(folder / "objects", flushes, lambda: snapshot(folder, signer))  # noqa: B023
        found = whole_snapshots(folder / "objects")
        seen.add(len(found))
        expected = snapshot(folder, signer).id
        assert whole_snapshots(folder / "objects") == {expected}
        shutil.rmtree(folder)
        if not went:
            assert found == {expected}
            break
    assert flushes > 10
    assert seen == {0, 1}


def test_while_it_is_removed(run, tmp_path, signer, cut_at):
    old, new = snapshot(run, signer, 2), snapshot(run, signer, 4)

    def prune(place):
        finish_deletions(place, clock=lambda: 1e12)
        if any(place.named.entries(f"snapshots/manifests/{old.id}")):
            manifest = find_manifest(place.named, old.id)
            delete_unnamed(place, manifest.objects, manifests=[old.id])

    for flushes in range(FLUSHES_MAX):
        folder = tmp_path / "copy"
        shutil.copytree(run, folder, copy_function=shutil.copy)
        place = open_at(folder / "objects")
        went = cut_at(folder / "objects", flushes, lambda: prune(place))  # noqa: B023
        assert new.id in whole_snapshots(folder / "objects")
        prune(place)
        assert whole_snapshots(folder / "objects") == {new.id}
        assert not any(place.store.has(one) for one in old.objects.keys() - new.objects.keys())
        shutil.rmtree(folder)
        if not went:
            break
    assert flushes > 3


def test_while_it_comes_from_another_place_or_a_file(run, tmp_path, signer, cut_at):
    made, source = snapshot(run, signer), FilesystemStore(run / "objects")
    file, scratch = tmp_path / "made.tar", tmp_path / "scratch"
    write_archive(made, source, file)
    for bring in (
        lambda place: copy_snapshot(source, place, made),
        lambda place: store_archive(file, place, scratch),
    ):
        seen = set()
        for flushes in range(0, FLUSHES_MAX, 5):
            folder = tmp_path / "place"
            folder.mkdir()
            went = cut_at(folder, flushes, lambda: bring(open_at(folder)))  # noqa: B023
            found = whole_snapshots(folder)
            assert found <= {made.id}
            seen.add(len(found))
            bring(open_at(folder))
            assert whole_snapshots(folder) == {made.id}
            shutil.rmtree(folder)
            if not went:
                assert found == {made.id}
                break
        assert flushes > 10
        assert seen == {0, 1}


def test_while_it_is_written_to_a_file(run, tmp_path, signer, cut_at):
    made, source = snapshot(run, signer), FilesystemStore(run / "objects")
    whole, target = tmp_path / "whole.tar", tmp_path / "there" / "made.tar"
    write_archive(made, source, whole)
    target.parent.mkdir()
    for flushes in range(FLUSHES_MAX):
        went = cut_at(target.parent, flushes, lambda: write_archive(made, source, target))
        assert target.exists() or went
        write_archive(made, source, target)
        assert target.read_bytes() == whole.read_bytes()
        target.unlink()
        if not went:
            break
    assert flushes == 2


@pytest.fixture
async def whole_run(tmp_path):
    return await make_whole_run(tmp_path / "run")


def test_while_a_run_begins_with_it(whole_run, tmp_path, signer, cut_at):
    """The ledger's own flushes are SQLite's, and cut elsewhere; objects and notes come before it."""
    made = take_snapshot(tmp_path / "run", signer)
    for flushes in range(0, FLUSHES_MAX, 5):
        second = another(whole_run, tmp_path / "second", made)
        begin = partial(begin_with_snapshot, second)
        went = in_child(partial(cut_at, tmp_path / "second", flushes, begin, spared="ledger"))
        told = begin()
        store = FilesystemStore(tmp_path / "second" / "objects")
        with LedgerReader(tmp_path / "second" / "ledger.db") as ledger:
            anchor = ledger.state().anchors[-1]
        assert (anchor.step, told.run.uid) == (4, "uid-2")
        for digest in objects_of_anchor(anchor).values():
            store.path(digest)
        shutil.rmtree(tmp_path / "second")
        if not went:
            break
    assert flushes > 10
