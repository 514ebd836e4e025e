"""Schedules that nobody has run before: each tree explores seeds of its own, so that a failure comes with a change and stays.

The seeds are printed, one that fails with its schedule; ``simulate.py SEED`` beside this file runs it again.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from scenario import FRESH_FIRST
from simulate import simulate

QUICK, LONG = 120, 2000
"""How many: three a second on a quiet core."""


def find_first(folder: Path = Path(__file__).parent) -> int:
    """The seed that the committed tree stands for; the same wherever it lies, another after every change.

    Files that came without their history have one for all.
    """
    named = subprocess.run(
        ("git", "rev-parse", "HEAD^{tree}"), cwd=folder, capture_output=True, text=True
    )
    return FRESH_FIRST + (int(named.stdout, 16) % 10**9 if named.returncode == 0 else 0)


def explore(count: int) -> None:
    first = find_first()
    print(f"fresh seeds from {first} on")
    for seed in range(first, first + count):
        report = simulate(seed)
        assert not report.broken, report.explain()


def test_fresh_schedules():
    explore(QUICK)


@pytest.mark.slow
def test_many_fresh_schedules():
    explore(LONG)


def test_a_tree_has_its_own_seeds_and_another_has_others(tmp_path):
    def git(*words):
        who = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")
        subprocess.run(("git", *who, *words), cwd=tmp_path, check=True, capture_output=True)

    assert find_first() == find_first()
    git("init")
    (tmp_path / "a").write_text("a")
    git("add", "a")
    git("commit", "-m", "a")
    before = find_first(tmp_path)
    (tmp_path / "a").write_text("b")
    git("commit", "-am", "b")
    assert before != find_first(tmp_path)
    assert min(before, find_first(tmp_path)) >= FRESH_FIRST
