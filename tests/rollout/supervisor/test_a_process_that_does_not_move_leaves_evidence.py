"""Before a process is ended for not moving it shows its threads and tasks, and what it showed is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollout.common.stacks import ask_for_stacks
from rollout.pods.child import run_child
from rollout.supervisor.evidence import EVIDENCE_FILES_MAX, keep_evidence
from rollout_api.credentials import mask

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

WAITING = """
import asyncio, os
from rollout.common.stacks import run_loop, show_on_signal
show_on_signal()
async def ask_a_judge_that_never_answers():
    print("ready", os.environ["MY_API_KEY"], flush=True)
    await asyncio.Event().wait()
async def main():
    await asyncio.create_task(ask_a_judge_that_never_answers(), name="judge")
run_loop(main())
"""
HOLDING = """
import ctypes
from rollout.common.stacks import show_on_signal
show_on_signal()
def inside_a_library():
    print("ready", flush=True)
    ctypes.PyDLL(None).pause()
inside_a_library()
"""


@pytest.fixture
def patient(monkeypatch):
    """A process that answers is waited for on a busy machine, too."""
    monkeypatch.setattr("rollout.supervisor.evidence.STACK_SECONDS_MAX", 60.0)
    monkeypatch.setattr("rollout.pods.child.SHOW_SECONDS_MAX", 60.0)


@contextmanager
def started(code: str, log: Path):
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=out,
            stderr=out,
            env={**os.environ, "MY_API_KEY": "sk-very-secret"},
        )
    try:
        while "ready" not in log.read_text():
            assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("patient")
def test_a_waiting_process_shows_its_threads_and_tasks(tmp_path):
    log = tmp_path / "actor-0.log"
    with started(WAITING, log) as process:
        file = keep_evidence("actor-0", process.pid, log, tmp_path / "evidence", {})

        text = file.read_text()
        assert file.name == "01-actor-0.txt"
        assert "most recent call first" in text
        assert "judge ask_a_judge_that_never_answers" in text
        assert process.poll() is None


def test_a_process_inside_a_library_that_holds_the_interpreter_shows_its_stack(tmp_path):
    log = tmp_path / "learner.log"
    with started(HOLDING, log) as process:
        file = keep_evidence("learner", process.pid, log, tmp_path / "evidence", {})

        assert "inside_a_library" in file.read_text()


def test_a_process_without_a_handler_is_not_ended_by_the_question():
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert ask_for_stacks(process.pid) == ()
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("patient")
def test_credentials_do_not_reach_the_evidence(tmp_path):
    log = tmp_path / "actor-0.log"
    with started(WAITING, log) as process:
        secret = {"MY_API_KEY": "sk-very-secret"}
        file = keep_evidence("actor-0", process.pid, log, tmp_path / "evidence", secret)

        assert "sk-very-secret" in log.read_text()
        assert "sk-very-secret" not in file.read_text()
        assert "<MY_API_KEY>" in file.read_text()
    assert mask("a b", {"TOKEN": "b"}) == "a b"


def test_the_first_failures_are_kept_and_no_more(tmp_path):
    folder = tmp_path / "evidence"
    folder.mkdir()
    for number in range(EVIDENCE_FILES_MAX):
        (folder / f"{number:02d}-actor-0.txt").touch()

    assert keep_evidence("actor-0", os.getpid(), tmp_path / "no.log", folder, {}) is None


@pytest.mark.usefixtures("patient")
def test_a_pod_that_is_ended_shows_where_its_work_stood_first(capfd, tmp_path):
    (tmp_path / "stuck.py").write_text(
        "import pathlib, signal, sys, time\n"
        "from rollout.common.stacks import show_on_signal\n"
        "show_on_signal()\n"
        "def stuck_here():\n"
        "    pathlib.Path(sys.argv[1]).touch()\n"
        "    time.sleep(600)\n"
        "stuck_here()\n"
    )
    told, ready = threading.Event(), tmp_path / "ready"

    def tell():
        while not ready.exists():
            pass
        told.set()

    threading.Thread(target=tell, daemon=True).start()
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

    code = run_child("stuck", [str(ready)], {**os.environ, "PYTHONPATH": path}, told)

    assert code == 128 + signal.SIGTERM
    assert "stuck_here" in capfd.readouterr().err
