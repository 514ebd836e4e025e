"""What a run of the tests explores is decided by what is tested: the same tree gives the same verdict."""

import subprocess
from pathlib import Path

import pytest
from fresh_seeds import FRESH_FIRST, find_first

ROOT = Path(__file__).parents[2]
CHANCE = ("SystemRandom", "secrets.randbelow")


@pytest.fixture
def git(tmp_path):
    def run(*words):
        who = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")
        subprocess.run(("git", *who, *words), cwd=tmp_path, check=True, capture_output=True)

    return run


def test_a_tree_has_its_seeds_and_another_has_others(git, tmp_path):
    git("init")
    (tmp_path / "a").write_text("a")
    git("add", "a")
    git("commit", "-m", "a")
    first = find_first(tmp_path)
    assert find_first(tmp_path) == first >= FRESH_FIRST

    (tmp_path / "a").write_text("b")
    git("commit", "-am", "b")
    assert find_first(tmp_path) != first

    git("revert", "--no-edit", "HEAD")
    assert find_first(tmp_path) == first


def test_no_test_draws_by_chance():
    drawing = {
        str(path.relative_to(ROOT))
        for folder in ("tests", "e2e")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__) and any(one in path.read_text() for one in CHANCE)
    }
    assert drawing == set()
