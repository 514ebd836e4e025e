"""Workers share the files of this folder: real nodes are one worker's, a file stays together, long files begin first."""

import subprocess
import sys
from pathlib import Path

import pytest

import sharing


@pytest.fixture(scope="module")
def files() -> dict[str, Path]:
    return {path.stem: path for path in Path(__file__).parents[1].rglob("test_*.py")}


def test_every_long_file_is_there_and_has_no_real_nodes(files: dict[str, Path]):
    long = [name for name in sharing.LONG if name != sharing.TENANTS]
    assert set(long) <= files.keys()
    assert not [name for name in long if "mark.real_nodes" in files[name].read_text()]


def test_a_folder_that_shares_one_cluster_is_one_share(files: dict[str, Path]):
    mine = {sharing.group_of(one) for one in files.values() if one.parent.name == sharing.TENANTS}
    assert mine == {sharing.TENANTS}


def test_no_two_files_have_one_name(files: dict[str, Path]):
    assert len(files) == len(list(Path(__file__).parents[1].rglob("test_*.py")))


def test_real_nodes_begin_first_then_long_files_then_the_others():
    groups = ["test_else", sharing.LONG[1], sharing.REAL, sharing.LONG[0]]
    assert sorted(groups, key=sharing.rank_of) == [
        sharing.REAL,
        *sharing.LONG[:2],
        "test_else",
    ]


def test_the_tests_of_a_file_are_in_one_share(files: dict[str, Path]):
    for name, path in files.items():
        where = path.relative_to(sharing.ROOT)
        shares = {sharing.scope_of(f"{where}::test_{n}[a::b]") for n in range(3)}
        assert shares <= {name, sharing.REAL, sharing.TENANTS}
        assert len(shares) == 1


def test_a_run_with_shares_hands_each_of_them_to_one_worker(tmp_path: Path):
    """xdist's own groups have no effect under pytest 9.2, and say nothing: what is handed out is looked at."""
    command = (
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "--no-loadscope-reorder",
        "-v",
        "-p",
        "no:cacheprovider",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *command, str(Path(__file__)), "-k", "not hands_each"],
        capture_output=True,
        check=False,
        text=True,
        cwd=sharing.ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert len({line[:5] for line in done.stdout.splitlines() if line.startswith("[gw")}) == 1
