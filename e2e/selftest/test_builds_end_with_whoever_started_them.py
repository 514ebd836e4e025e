"""Builds in the background leave no compiler behind: not when they are told to end, not when their starter is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cluster.control.background import NICENESS
from waiting import wait_until

E2E = Path(__file__).parents[1]
STUB = """#!/bin/bash
if [ "$1" = env ]; then echo go1.30; exit; fi
echo "compiler $$" >> {log}
/bin/sleep 600 & echo "its child $!" >> {log}
wait
"""
"""A Go toolchain that compiles for ever, by a process of its own."""
START = 'python=$1; "$python" -m cluster build control-plane --background 2>&1 & echo $!; wait'


@pytest.fixture
def started(tmp_path: Path):
    """The shell that started the builds, and what it started."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "go").write_text(STUB.format(log=tmp_path / "log"))
    (tools / "go").chmod(0o755)
    environment = {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(E2E)}
    shell = subprocess.Popen(
        ["/bin/bash", "-c", START, "start", sys.executable],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    builds = psutil.Process(int(shell.stdout.readline()))
    wait_until(lambda: len(tools_of(tmp_path)) == 2, "a compiler works", 60)
    yield shell, builds, [psutil.Process(pid) for pid in tools_of(tmp_path)]
    for one in (shell, builds):
        if one.poll() is None if one is shell else one.is_running():
            one.kill()
    shell.wait()


def tools_of(folder: Path) -> list[int]:
    log = folder / "log"
    return [int(line.split()[-1]) for line in log.read_text().splitlines()] if log.exists() else []


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_builds_are_last_in_turn(started):
    _, builds, tools = started
    assert [one.nice() for one in (builds, *tools)] == [NICENESS] * 3


def test_builds_that_are_told_to_end_take_their_compilers_with_them(started):
    _, builds, tools = started
    builds.send_signal(signal.SIGTERM)
    wait_until(lambda: not alive([builds, *tools]), "the builds and their tools end", 60)


def test_builds_whose_starter_is_killed_end_with_their_compilers(started):
    shell, builds, tools = started
    shell.kill()
    wait_until(lambda: not alive([builds, *tools]), "the builds and their tools end", 60)
