"""The machine of a run loses its power: what was flushed is all that is left, and it is enough.

A flush that is left out is found: of a file, of the folder that names it, of the ledger.
"""

from __future__ import annotations

import os

import places
import pytest
from power import Disk
from scenario import POWER_FIRST, build_scenario
from simulate import run_scenario, simulate

from rollout.common import atomic_files
from rollout.objects.filesystem import FilesystemStore, write_atomically

QUICK = range(POWER_FIRST, POWER_FIRST + 4)
LONG = range(POWER_FIRST, POWER_FIRST + 180)
SEARCHED = range(POWER_FIRST, POWER_FIRST + 40)


def check(seeds):
    lost = 0
    for seed in seeds:
        report = simulate(seed)
        assert not report.broken, report.explain()
        lost += report.counts.get("files lost", 0)
    return lost


def test_a_few_schedules():
    check(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(LONG.start, LONG.stop, 60))
def test_many_schedules(first):
    check(range(first, first + 60))


def first_broken():
    found = (run_scenario(build_scenario(seed)) for seed in SEARCHED)
    return next((report for report in found if report.broken), None)


def flush_folders_only(self, what):
    if isinstance(what, os.PathLike):
        atomic_files.fsync_folder(what)


def flush_files_only(self, what):
    if not isinstance(what, os.PathLike):
        os.fsync(what.fileno())


@pytest.mark.parametrize("flush", [flush_folders_only, flush_files_only])
def test_an_object_that_is_not_flushed_is_found(monkeypatch, flush):
    monkeypatch.setattr(FilesystemStore, "_flush", flush)

    report = first_broken()

    assert report is not None
    assert report.counts["files lost"] > 0


def test_a_ledger_whose_commits_are_not_flushed_is_found(monkeypatch):
    opened = places.open_connection

    def open_carelessly(*given):
        connection, lock = opened(*given)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection, lock

    monkeypatch.setattr(places, "open_connection", open_carelessly)

    report = first_broken()

    assert report is not None
    assert "cut-power" in "\n".join(report.trace)


def test_a_cut_leaves_what_was_flushed_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "old").write_text("there from the beginning")
    (tmp_path / "spared").write_text("x")
    disk = Disk(tmp_path, spared="spared")
    monkeypatch.setattr(os, "fsync", disk.fsync)
    write_atomically(tmp_path / "whole", b"whole")
    (tmp_path / "named-late").write_text("flushed, and its name is not")
    with (tmp_path / "named-late").open("rb") as file:
        os.fsync(file.fileno())
    (tmp_path / "spared.more").write_text("y")

    assert disk.cut() == 1

    left = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert left == {
        "old": "there from the beginning",
        "whole": "whole",
        "spared": "x",
        "spared.more": "y",
    }


def test_a_cut_empties_a_file_whose_name_alone_was_flushed(tmp_path, monkeypatch):
    disk = Disk(tmp_path, spared="ledger")
    monkeypatch.setattr(os, "fsync", disk.fsync)
    (tmp_path / "torn").write_text("never flushed")
    atomic_files.fsync_folder(tmp_path)

    assert disk.cut() == 1
    assert (tmp_path / "torn").read_text() == ""
