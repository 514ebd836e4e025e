"""docs/how-to/write-an-algorithm.md, followed: the objective is installed, tested, planned and run."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from docs_kit import ROOT, blocks, write_files
from warm import run_rollout

PAGE = ROOT / "docs" / "how-to" / "write-an-algorithm.md"


@pytest.fixture
def installed(tmp_path) -> Path:
    """The page's files, and what an installer would make of its pyproject."""
    folder = write_files(PAGE, tmp_path)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    [(group, names)] = project["entry-points"].items()
    lines = [f"{name} = {place}" for name, place in names.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    return folder


def run(folder: Path, *words: str) -> None:
    """A Python that finds the installed objective; fails when it does."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(folder),
            "ROLLOUT_HOME": str(folder / "runs"),
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


def rollout(folder: Path, *words: str, expect: int = 0) -> str:
    """Both streams of a command in the folder, where it is found as well; fails on another exit code."""
    done = run_rollout(*words, folder=folder, environment={"ROLLOUT_HOME": str(folder / "runs")})
    assert done.returncode == expect, done.stderr
    return done.stdout + done.stderr


@pytest.mark.process
def test_the_check_of_the_page_holds(installed):
    [_, check] = [block for block in blocks("python") if block.page == PAGE]

    run(installed, "-c", check.text)


@pytest.mark.process
@pytest.mark.timeout(900)
def test_the_objective_trains(installed):
    told = rollout(installed, "run", "-f", "gentle.yaml", "--set", "train.maxSteps=2")

    assert "report.html" in told


@pytest.mark.process
def test_what_is_not_installed_is_told_before_anything_starts(installed):
    path = installed / "gentle.yaml"
    path.write_text(path.read_text().replace("name: gentle, p", "name: rough, p"))

    told = rollout(installed, "run", "-f", "gentle.yaml", expect=2)

    assert "no algorithm 'rough' is installed" in told
    assert "installed: gentle" in told
