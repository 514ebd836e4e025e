import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rollout.common.child_processes import ProcessSpec, end_processes, start_process
from rollout.common.parent_death import tied_argv

pytestmark = pytest.mark.process

PARENT = """
import subprocess, sys, time
from rollout.common.parent_death import tied_argv
child = subprocess.Popen(tied_argv("sleeper"), start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""
SLEEPER = "import time\nprint('awake', flush=True)\ntime.sleep(60)\n"


def gone(pid: int, seconds_max: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def sleeper(tmp_path, monkeypatch) -> Path:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_a_child_dies_when_its_parent_is_killed(sleeper):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert parent.stdout.readline() == "awake\n"

    parent.kill()
    parent.wait()

    assert gone(child)


def test_a_child_whose_parent_is_already_gone_does_not_start(sleeper):
    ended = subprocess.run(tied_argv("sleeper", parent=1), timeout=60, check=False)

    assert ended.returncode == 1


def test_a_module_sees_its_own_arguments(tmp_path, monkeypatch):
    (tmp_path / "echo.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    said = subprocess.run(
        tied_argv("echo", "--config", "x", parent=os.getpid()),
        capture_output=True,
        text=True,
        check=True,
    )

    assert said.stdout == "__main__ ['--config', 'x']\n"


def test_a_stubborn_process_is_killed_after_its_grace(tmp_path, monkeypatch):
    (tmp_path / "stubborn.py").write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('awake', flush=True)\ntime.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    log = tmp_path / "log"
    spec = ProcessSpec(name="x", role="actor", module="stubborn", arguments=(), log=log)
    process = start_process(spec)
    while "awake" not in log.read_text():
        time.sleep(0.01)

    end_processes([process], grace_seconds=0.2)

    assert process.returncode == -signal.SIGKILL
