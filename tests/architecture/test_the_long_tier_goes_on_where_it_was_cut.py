"""`make test-long` keeps verdicts by the tree's digest, and is shared by several machines."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import verdicts

CASES = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_slow(number):
    assert number != {broken}

def test_quick():
    pass
"""


@pytest.fixture
def tree(tmp_path):
    subprocess.run(("git", "init", "-q", tmp_path), check=True)
    (tmp_path / ".gitignore").write_text("verdicts\n__pycache__\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: minutes\n")
    (tmp_path / "conftest.py").write_text(
        f"import sys; from pathlib import Path\nsys.path.append({str(Path(verdicts.__file__).parent)!r})\n"
        "import verdicts\nverdicts.ROOT = Path(__file__).parent\n"
        "verdicts.digest_tree.__defaults__ = (verdicts.ROOT,)\n"
        "def pytest_configure(config): verdicts.register(config)\n"
    )
    return tmp_path


def run(tree, *, broken=-1, **environment):
    """The counts of pytest's last line."""
    (tree / "test_cases.py").write_text(CASES.format(broken=broken))
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "."),
        cwd=tree,
        env={
            **os.environ,
            "ROLLOUT_VERDICTS": "verdicts",
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    words = done.stdout.splitlines()[-1].replace(",", "").split()
    return {word: int(number) for number, word in pairwise(words) if number.isdigit()}


def test_what_has_passed_on_this_tree_is_not_run_again(tree):
    assert run(tree, broken=7) == {"failed": 1, "passed": 20}
    assert run(tree, broken=7) == {"failed": 1, "passed": 1, "skipped": 19}


def test_a_change_of_any_file_makes_verdicts_void(tree):
    run(tree)
    (tree / "other.txt").write_text("new")
    assert run(tree) == {"passed": 21}


def test_shards_run_every_slow_test_once_and_all_quick_ones(tree):
    counts = [run(tree, ROLLOUT_SHARD=f"{number}/3") for number in (1, 2, 3)]
    assert sum(count["passed"] for count in counts) == 20 + 3
    assert all(1 < count["passed"] < 21 for count in counts)


@pytest.mark.parametrize("shard", ["0/2", "3/2", "x", "1/", "-1/2"])
def test_a_shard_that_is_none_is_refused(shard):
    with pytest.raises(pytest.UsageError, match="such as 2/4"):
        verdicts.parse_shard(shard)
