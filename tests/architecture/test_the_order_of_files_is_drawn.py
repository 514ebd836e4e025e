"""A seed draws the order of the test files; each file stays whole, what shares a server one share, and no long file comes last."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from file_order import (
    CLUSTERS,
    REAL_NODES,
    SECONDS,
    SERVERS,
    SLACK_SECONDS,
    TENANTS,
    draw_order,
    share_of,
    weigh,
)
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
FOLDERS = {SERVERS, TENANTS}
NAMES = [f"{file}::test_{name}" for file in "abcdef" for name in ("one", "two")]
WORDS = ("--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:cacheprovider")


@pytest.fixture
def run(tmp_path):
    shutil.copy(ROOT / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name in "abcdef":
        (tmp_path / f"test_{name}.py").write_text("def test_one(): ...\ndef test_two(): ...\n")

    def act(seed, *words):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *WORDS, *words],
            cwd=tmp_path,
            env=os.environ | {"ROLLOUT_TEST_ORDER": seed, "PYTHONPATH": str(ROOT / "tests")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        lines = [line for line in done.stdout.splitlines() if "::" in line]
        found = [line.split()[-1] for line in lines if " " not in line or "PASSED" in line]
        return [line.removeprefix("test_").replace(".py", "") for line in found]

    return act


@pytest.fixture
def collect(run):
    return lambda seed: run(seed, "-q", "--collect-only")


def test_without_a_seed_files_come_by_name(collect):
    assert collect("") == NAMES


def test_a_seed_draws_an_order_of_whole_files(collect):
    drawn = collect("7")
    assert sorted(drawn) == NAMES
    assert drawn != NAMES
    files = [name[0] for name in drawn]
    assert files == [file for file in dict.fromkeys(files) for _ in range(2)]
    assert drawn == collect("7")
    assert drawn != collect("8")


def test_a_worker_is_handed_whole_files_in_the_order_that_was_drawn(run, collect):
    assert run("7", "-v", "-n", "1") == collect("7")


def test_every_file_that_is_known_to_be_long_is_there():
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "e2e").rglob("test_*.py")]
    assert SECONDS.keys() - FOLDERS - {REAL_NODES} <= {path.stem for path in files}
    assert all((ROOT / folder).is_dir() for folder in FOLDERS)


def test_no_two_files_of_the_clusters_have_one_name():
    files = list((ROOT / CLUSTERS).rglob("test_*.py"))
    assert len(files) == len({path.stem for path in files})


def test_what_needs_the_same_servers_is_one_share_and_any_other_file_its_own():
    assert share_of("tests/a/test_b.py") == "tests/a/test_b.py"
    assert share_of(f"{SERVERS}test_a.py") == share_of(f"{SERVERS}test_c.py") == SERVERS
    clusters = [str(path.relative_to(ROOT)) for path in (ROOT / CLUSTERS).rglob("test_*.py")]
    shares = {file: share_of(file) for file in clusters}
    assert {TENANTS, REAL_NODES} < set(shares.values())
    for file, share in shares.items():
        assert share in {file, TENANTS, REAL_NODES}
        real = "mark.real_nodes" in (ROOT / file).read_text()
        assert (share == REAL_NODES) == (real and not file.startswith(TENANTS))


def test_what_is_known_to_be_long_weighs_more_than_a_few_tests():
    long = next(name for name in SECONDS if name.startswith("test_"))
    assert weigh(f"tests/a/{long}.py", 2) == SECONDS[long]
    assert weigh("tests/a/test_b.py", 7) == 7 < weigh("e2e/a/test_b.py", 7)


@given(seconds=st.lists(st.integers(1, 600), max_size=40), seed=st.text(max_size=3))
def test_two_workers_end_within_the_slack_of_each_other_or_the_longest_share_begins_first(
    seconds, seed
):
    shares = {str(number): one for number, one in enumerate(seconds)}
    order = draw_order(shares, seed)
    ends = [0, 0]
    for share in order:
        ends[ends.index(min(ends))] += shares[share]
    assert sorted(order) == sorted(shares)
    last = [one for one in order if shares[one] > SLACK_SECONDS + sum_behind(order, one, shares)]
    assert max(ends) - min(ends) <= SLACK_SECONDS or last


def sum_behind(order, share, seconds):
    return sum(seconds[one] for one in order[order.index(share) + 1 :])
