"""Workers are handed whole files, the longest first, and the folder of shared vLLM servers as one."""

import subprocess
import sys
from pathlib import Path

from longest_first import SECONDS, SERVERS, share_of, weigh

TESTS = Path(__file__).parents[1]
FILE = """
import pytest

@pytest.mark.parametrize("number", range({}))
def test_it(number):
    pass
"""


def test_every_long_file_is_there():
    stems = {path.stem for path in TESTS.rglob("test_*.py")}
    assert SECONDS.keys() - {SERVERS} <= stems
    assert (TESTS.parent / SERVERS).is_dir()


def test_a_file_is_one_share_and_so_is_the_folder_of_servers():
    assert share_of("tests/a/test_b.py::test_c[d::e]") == "tests/a/test_b.py"
    assert share_of(f"{SERVERS}test_a.py::test_b") == share_of(f"{SERVERS}test_c.py::test_d")


def test_what_is_known_to_be_long_weighs_more_than_a_few_tests():
    long = next(name for name in SECONDS if name != SERVERS)
    assert weigh(f"tests/a/{long}.py", 2) == SECONDS[long]
    assert weigh("tests/a/test_b.py", 7) == 7


def test_a_run_hands_out_the_longest_first(tmp_path):
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    for name, number in (("test_a", 1), ("test_b", 3), ("test_it_learns_honestly", 1)):
        (tmp_path / f"{name}.py").write_text(FILE.format(number))
    words = ("-n", "1", "--dist", "loadfile", "-v", "-p", "no:cacheprovider")

    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"--rootdir={tmp_path}", *words, str(tmp_path)],
        env={"PYTHONPATH": str(TESTS), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split()[-1] for line in done.stdout.splitlines() if "PASSED" in line]
    assert [one.partition("::")[0] for one in ran] == [
        "test_it_learns_honestly.py",
        *["test_b.py"] * 3,
        "test_a.py",
    ]
