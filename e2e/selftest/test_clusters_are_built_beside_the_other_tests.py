"""tests/run.sh builds what clusters need from its first second on, waits for it before they start, and leaves nothing behind."""

import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from cluster.paths import REPOSITORY

TOOLS = ("ruff", "pyrefly", "lint-imports")
PYTHON = """#!/bin/bash
case "$*" in
  "tests/file_order.py") echo 7 ;;
  "-m cluster build"*) echo "begins" >> "$LOG"; {build} ;;
  "tests/timing.py"*) echo "timing" >> "$LOG" ;;
  "-m pytest"*" e2e "*) echo "clusters" >> "$LOG" ;;
  "-m pytest"*) echo "tests" >> "$LOG"; exit {failed} ;;
  *) echo "generated" >> "$LOG" ;;
esac
"""
TOOL = """#!/bin/bash
until grep -q begins "$LOG"; do /bin/sleep 0.01; done
echo "gate" >> "$LOG"
{gate}
"""


@pytest.fixture
def run(tmp_path: Path):
    """Runs the script with other tools: what they wrote, and how it ended."""

    def act(
        build: str, gate: str = "", failed: int = 0
    ) -> tuple[list[str], subprocess.CompletedProcess[str]]:
        (tmp_path / "tests").mkdir()
        shutil.copy(REPOSITORY / "tests" / "run.sh", tmp_path / "tests" / "run.sh")
        tools = tmp_path / "bin"
        tools.mkdir()
        for name in TOOLS:
            (tools / name).write_text(TOOL.format(gate=gate))
        (tools / "python").write_text(PYTHON.format(build=build, failed=failed))
        for file in tools.iterdir():
            file.chmod(0o755)
        log = tmp_path / "log"
        done = subprocess.run(
            [str(tmp_path / "tests" / "run.sh")],
            env={"BIN": str(tools), "LOG": str(log), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return log.read_text().split(), done

    return act


def test_clusters_wait_for_builds_that_began_first(run):
    wrote, done = run(
        'until [ "$(grep -c tests "$LOG")" = 2 ]; do sleep 0.01; done; echo built >> "$LOG"'
    )
    assert done.returncode == 0, done.stderr
    assert wrote[0] == "begins"
    assert wrote[-2:] == ["clusters", "timing"]
    assert wrote.index("built") < wrote.index("clusters")
    assert wrote.count("tests") == 2


def test_builds_that_fail_are_reported_and_no_cluster_starts(run):
    wrote, done = run("echo no compiler here; exit 1")
    assert done.returncode == 1
    assert "could not be built" in done.stderr
    assert "no compiler here" in done.stderr
    assert "clusters" not in wrote


def test_a_tier_that_fails_tells_its_seconds_and_is_the_last(run):
    wrote, done = run(":", failed=1)
    assert done.returncode == 1
    assert wrote[-2:] == ["tests", "timing"]
    assert wrote.count("tests") == 1


def test_a_gate_that_fails_ends_the_builds(run, tmp_path: Path):
    _, done = run(
        f"echo $$ > {tmp_path}/pid; exec sleep 600",
        f"until [ -s {tmp_path}/pid ]; do :; done; exit 3",
    )
    assert done.returncode == 3
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
