"""A program's point: it is passed at once, held while an image is made, asked again after a restore, and never held by the dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from rollout.errors import SnapshotRefused, SpecError
from rollout.snapshots.processes import cell as cells
from rollout.snapshots.processes import point
from rollout.snapshots.processes.cell import (
    StateTold,
    ask,
    list_cells,
    locked,
    make_cell,
    renew,
    tree_in,
)

TIMEOUT = 60


@pytest.fixture
def cell(tmp_path):
    return make_cell(tmp_path / "processes", "learner", ["python", "train.py"])


def make_point(cell, digest=lambda: "abc", renewed=None):
    return point.ImagePoint(digest, renewed, {point.FOLDER_VARIABLE: str(cell.folder)})


def in_thread(work) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_outside_of_a_cell_a_point_is_nothing():
    made = point.ImagePoint(lambda: pytest.fail("asked"), environment={})
    made.reach(3)


def test_a_program_that_nobody_holds_passes(cell):
    make_point(cell, lambda: pytest.fail("asked")).reach(3)
    assert cell.has_point


def test_one_that_is_held_tells_of_its_step_and_goes_on_when_it_is_let_go(cell):
    made = make_point(cell)
    keeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with locked(cell, point.HOLD):
        thread = in_thread(lambda: made.reach(17))
        assert ask(cell, keeper) == StateTold(digest="abc", step=17)
        assert ask(cell, keeper) == StateTold(digest="abc", step=17), "and it can be asked again"
        assert thread.is_alive()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    keeper.communicate()


def test_what_is_renewed_is_in_the_environment_before_the_next_step(cell, monkeypatch):
    monkeypatch.setenv("POINT_TOKEN", "old")
    seen = []
    made = make_point(
        cell, renewed=lambda names: seen.append((dict(names), os.environ["POINT_TOKEN"]))
    )
    keeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with locked(cell, point.HOLD):
        thread = in_thread(lambda: made.reach(1))
        ask(cell, keeper)
        renew(cell, {"POINT_TOKEN": "new"})
        assert (cell.folder / point.RENEWED).stat().st_mode & 0o077 == 0
    thread.join(TIMEOUT)
    assert seen == [({"POINT_TOKEN": "new"}, "new")]
    assert not (cell.folder / point.RENEWED).exists(), "a secret does not stay behind"
    keeper.communicate()


def test_a_holder_that_is_killed_holds_nobody(cell):
    held = (
        "import sys; from pathlib import Path\n"
        "from rollout.snapshots.processes.cell import Cell, locked\n"
        "with locked(Cell(folder=Path(sys.argv[1]), uid='u', name='n', argv=()), 'hold'):\n"
        "    print('held', flush=True); input()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", held, str(cell.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"held\n"
    made = make_point(cell)
    with pytest.raises(SpecError, match="held by another command"), locked(cell, point.HOLD):
        pass
    thread = in_thread(lambda: made.reach(1))
    assert point.is_held(cell.folder)
    holder.kill()
    holder.wait()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_one_that_ended_is_not_waited_for(cell):
    make_point(cell)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with locked(cell, point.HOLD), pytest.raises(SnapshotRefused, match="ended before"):
        ask(cell, gone)


def test_one_that_comes_to_no_point_is_let_go(cell, monkeypatch):
    monkeypatch.setattr(cells, "HOLD_SECONDS_MAX", 0.0)
    make_point(cell)
    with locked(cell, point.HOLD), pytest.raises(SnapshotRefused, match="it goes on"):
        ask(cell)


@pytest.mark.parametrize("digest", ["x" * 129, "two\nlines"])
def test_a_digest_that_is_none_is_refused(cell, digest):
    made = make_point(cell, lambda: digest)
    with locked(cell, point.HOLD):
        point.write_whole(cell.folder / point.ASKED, "a")
        with pytest.raises(ValueError, match="expected a digest"):
            made.reach(1)


@pytest.mark.parametrize("name", ["", "../up", "a b", "x" * 64, "é"])
def test_a_name_that_is_none_is_refused(tmp_path, name):
    with pytest.raises(SpecError, match="--name"):
        make_cell(tmp_path / "processes", name, [])
    assert not (tmp_path / "processes").exists()


def test_what_is_no_cell_is_left_out_and_an_empty_cell_has_no_processes(tmp_path, cell):
    home = cell.folder.parent
    for number, text in enumerate(
        ["", "[]", "{}", json.dumps({"uid": "other", "name": "n", "argv": []})]
    ):
        (home / str(number)).mkdir()
        (home / str(number) / "cell.json").write_text(text)
    assert list_cells(home) == [cell]
    assert tree_in(cell) is None
    with locked(cell, cells.LIVE):
        assert tree_in(cell) is None
