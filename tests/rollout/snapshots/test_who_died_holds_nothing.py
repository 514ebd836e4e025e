"""Whether a process that left its number behind still runs: what it holds is taken from the dead only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollout.common.child_processes import is_running


def test_numbers_that_are_no_process_do_not_run():
    assert [is_running(pid) for pid in (os.getpid(), 0, -1)] == [True, False, False]


@pytest.mark.process
def test_a_process_that_ended_does_not_run_whether_or_not_its_parent_has_looked():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_running(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(child.pid)
    child.communicate()
    assert not is_running(child.pid)


@pytest.mark.parametrize(
    ("answer", "runs"), [(PermissionError, True), (ProcessLookupError, False), (None, True)]
)
def test_one_that_the_machine_does_not_show_is_asked_for(answer, runs, monkeypatch):
    """A file system of processes that is mounted with hidepid shows each user its own only."""

    def hide(path, *_args, **_named):
        raise FileNotFoundError(path)

    def kill(pid, number):
        assert (pid, number) == (4711, 0)
        if answer is not None:
            raise answer

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", hide)
        patched.setattr(os, "kill", kill)
        found = is_running(4711)

    assert found is runs
