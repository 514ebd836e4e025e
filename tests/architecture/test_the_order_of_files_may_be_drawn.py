"""A seed draws the order of the test files; each file stays whole, and the same seed draws the same order."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"
NAMES = [f"{file}::test_{name}" for file in "abcdef" for name in ("one", "two")]


@pytest.fixture
def collect(tmp_path):
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name in "abcdef":
        (tmp_path / f"test_{name}.py").write_text("def test_one(): ...\ndef test_two(): ...\n")

    def act(seed):
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ
            | {
                "ROLLOUT_TEST_ORDER": seed,
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTHONPATH": str(CONFTEST.parent / "tests"),
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        found = [line for line in done.stdout.splitlines() if "::" in line]
        return [line.removeprefix("test_").replace(".py", "") for line in found]

    return act


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
