"""The power goes at any flush, with all that was not flushed: what is listed is whole, and what was acknowledged is there."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from crash_kit import whole_snapshots
from snapshot_kit import make_run, open_at, snapshot

from rollout.snapshots.collection import delete_unnamed, finish_deletions
from rollout.snapshots.place import find_manifest

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


@pytest.fixture
def cut_at(monkeypatch):
    def cut(folder, flushes, operation):
        """Whether the power went before the operation ended; either way, what was not flushed is gone."""
        from power import Disk

        disk = Disk(folder, "-")
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
