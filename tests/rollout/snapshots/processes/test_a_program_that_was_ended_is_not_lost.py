"""A program that is ended with its image has no other state: where the image cannot be stored, a repeat of the command stores it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from process_images import SECRET, dump_folder

from rollout.errors import SnapshotRefused, SpecError, StoreError
from rollout.runs.processes.restoring import require_restorable, restored
from rollout.runs.processes.saving import is_unsaved, place_of_images, save_image
from rollout.runs.snapshots.places import Found
from rollout.snapshots.processes.cell import LIVE, locked, make_cell, processes_home
from rollout.snapshots.processes.contract import Support
from rollout.snapshots.processes.init import KEEPER, STARTED


class PretendedCriu:
    """Writes a dump as CRIU does, without it; ends the program where it is told to."""

    def __init__(self, child: subprocess.Popen[bytes], *, fails: bool = False) -> None:
        self.child, self.fails, self.dumps = child, fails, 0

    def support(self, *, tried: bool = True) -> Support:
        return Support(version="4.2.1")

    def dump(self, tree, folder, *, stop: bool) -> None:
        self.dumps += 1
        if self.fails:
            raise SnapshotRefused("no image was made, and the program goes on")
        made = dump_folder(folder.with_name("made"), str(self.dumps).encode())
        for one in made.iterdir():
            one.rename(folder / one.name)
        made.rmdir()
        if stop:
            self.child.kill()
            self.child.wait()
        (folder / "stats-dump").write_bytes(b"")

    def restore_argv(self) -> list[str]:
        return ["false"]


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A program in a cell, as far as the command that saves can see."""
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    keeper = subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], start_new_session=True)
    cell = make_cell(processes_home(tmp_path / "home"), "learner", ["train"])
    (cell.folder / KEEPER).write_text(json.dumps({"keeper": 1, "init": keeper.pid}))
    (cell.folder / STARTED).write_text(json.dumps({"root": 1001, "pipe": 7}))
    children = f"/proc/{keeper.pid}/task/{keeper.pid}/children"
    while not open(children).read().strip():  # noqa: PTH123, SIM115 - /proc
        pass
    yield cell, keeper
    os.killpg(keeper.pid, signal.SIGKILL)
    keeper.wait()


def full(*_: object) -> str:
    raise StoreError("the disk is full")


def test_one_that_was_ended_while_the_disk_was_full_is_saved_by_a_repeat(world, monkeypatch):
    cell, keeper = world
    criu = PretendedCriu(keeper)
    place = place_of_images(None)
    with locked(cell, LIVE), monkeypatch.context() as broken:
        broken.setattr("rollout.objects.filesystem.FilesystemStore.put", full)
        with pytest.raises(StoreError, match="full"):
            save_image("learner", criu, place, stop=True)
    assert is_unsaved(cell)
    saved = save_image("learner", criu, place)
    assert criu.dumps == 1, "it is the dump that was there"
    assert not cell.dump.exists()
    layer = saved.manifest.layer("process")
    assert layer is not None
    assert layer.facts["pages"] == 4
    with pytest.raises(SpecError, match="no program"):
        save_image("learner", criu, place)


def test_an_older_image_does_not_take_the_place_of_what_is_not_saved_yet(world, monkeypatch):
    cell, keeper = world
    criu, place = PretendedCriu(keeper), place_of_images(None)
    with locked(cell, LIVE):
        older = save_image("learner", criu, place)
        with monkeypatch.context() as broken:
            broken.setattr("rollout.objects.filesystem.FilesystemStore.put", full)
            with pytest.raises(StoreError):
                save_image("learner", criu, place, stop=True)
    image = require_restorable(Found(manifest=older.manifest, place=place), criu)
    with pytest.raises(SnapshotRefused, match="no image yet"), restored(image, criu, {}):
        pass
    assert is_unsaved(cell)
    second = save_image("learner", criu, place)
    assert second.new_bytes < older.new_bytes * 2
    with (
        pytest.raises(SnapshotRefused, match="does not go on"),
        restored(require_restorable(Found(manifest=second.manifest, place=place), criu), criu, {}),
    ):
        pass


def test_one_that_goes_on_leaves_no_dump_behind(world, monkeypatch):
    cell, keeper = world
    place = place_of_images(None)
    with locked(cell, LIVE):
        with monkeypatch.context() as broken:
            broken.setattr("rollout.objects.filesystem.FilesystemStore.put", full)
            with pytest.raises(StoreError):
                save_image("learner", PretendedCriu(keeper), place)
        assert not cell.dump.exists()
        with pytest.raises(SnapshotRefused, match="goes on"):
            save_image("learner", PretendedCriu(keeper, fails=True), place, stop=True)
        assert not cell.dump.exists()
        assert not is_unsaved(cell)
    assert keeper.poll() is None
    stored = [one for one in (cell.folder.parent / "objects").rglob("*") if one.is_file()]
    assert all(SECRET not in one.read_bytes() for one in stored)
    assert sys.platform == "linux"


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff", b"[" * 100_000])
def test_notes_that_are_none_are_no_dump(world, text):
    cell, _ = world
    cell.dump.mkdir()
    (cell.dump / "stats-dump").write_bytes(b"")
    (cell.dump / "notes.json").write_bytes(text)
    assert not is_unsaved(cell)
