"""Before a process is ended it shows its threads and tasks, and what it showed is kept with the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from local_jobs import start_job

from rollout.common.stacks import ask_for_stacks
from rollout.pods.child import run_child
from rollout.report.evidence import list_evidence
from rollout.supervisor.evidence import EVIDENCE_FILES_MAX, Witness, keep_stuck
from rollout_api.fields.credentials import mask

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

LOOK_SECONDS_MAX = 100.0
"""Bound against hanging only."""
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

TOLD = """
import asyncio
from rollout.common.stacks import heed_end, run_loop, show_on_signal
show_on_signal()
async def finish_what_there_is(told):
    print("ready", flush=True)
    await told.acquire()
    await told.acquire()
async def main():
    told = asyncio.Semaphore(0)  # counts: a signal may come before the loop has heard of the one before it
    heed_end(told.release, asyncio.get_running_loop())
    await asyncio.create_task(finish_what_there_is(told), name="last sample")
run_loop(main())
"""
HANGING = """
import os, pathlib, threading

def even(prompts, completions, rows):
    pathlib.Path(os.environ["ROLLOUT_TEST_SPELLS"], "hung").touch()
    wait_for_a_judge()

def wait_for_a_judge():
    threading.Event().wait()
"""


def until(condition: Callable[[], object]) -> None:
    """Wait for what another process does."""
    deadline = time.monotonic() + LOOK_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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


def witness(pid: int, log: Path, **environment: str) -> Witness:
    return Witness(name="actor-0", pid=pid, log=log, environment=environment)


@pytest.mark.usefixtures("patient")
def test_a_waiting_process_shows_its_threads_and_tasks(tmp_path):
    log = tmp_path / "actor-0.log"
    with started(WAITING, log) as process:
        file = keep_stuck(witness(process.pid, log), tmp_path / "evidence")

        text = file.read_text()
        assert file.name == "01-actor-0.txt"
        assert "most recent call first" in text
        assert "judge ask_a_judge_that_never_answers" in text
        assert process.poll() is None


def test_a_process_inside_a_library_that_holds_the_interpreter_shows_its_stack(tmp_path):
    log = tmp_path / "learner.log"
    with started(HOLDING, log) as process:
        file = keep_stuck(witness(process.pid, log), tmp_path / "evidence")

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
        file = keep_stuck(witness(process.pid, log, **secret), tmp_path / "evidence")

        assert "sk-very-secret" in log.read_text()
        assert "sk-very-secret" not in file.read_text()
        assert "<MY_API_KEY>" in file.read_text()
    assert mask("a b", {"TOKEN": "b"}) == "a b"


def test_the_first_failures_are_kept_and_no_more(tmp_path):
    folder = tmp_path / "evidence"
    folder.mkdir()
    for number in range(EVIDENCE_FILES_MAX):
        (folder / f"{number:02d}-actor-0.txt").touch()

    assert keep_stuck(witness(os.getpid(), tmp_path / "no.log"), folder) is None


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


def test_a_process_that_is_told_to_go_shows_where_it_stands_once_and_goes_on_leaving(tmp_path):
    log = tmp_path / "actor-0.log"
    with started(TOLD, log) as process:
        end = f"-- end of the stacks of process {process.pid} --"
        process.terminate()
        until(lambda: end in log.read_text())
        process.terminate()

        assert process.wait(60) == 0
        assert log.read_text().count(end) == 1
        assert "last sample finish_what_there_is" in log.read_text()


@pytest.mark.timeout(300)
def test_every_process_of_a_run_shows_where_it_stands_when_asked_and_when_the_run_is_told_to_end(
    tmp_path,
):
    job = start_job(tmp_path / "runs", reward=HANGING)
    until((job.spells / "hung").exists)
    family = psutil.Process(job.process.pid).children(recursive=True)
    for one in family:
        one.send_signal(signal.SIGUSR1)
    for name in ("coordinator", "actor-0", "learner"):
        until(lambda name=name: "-- end of the stacks of process" in job.log(name))
    # Two processes that are asked at the same moment cut each other's lines; a name is written at once.
    until(lambda: "wait_for_a_judge" in job.log("actor-0"))
    assert [one for one in family if not one.is_running()] == []

    os.kill(job.process.pid, signal.SIGTERM)
    folder = job.run_dir / "evidence"
    until(lambda: "stopping at the next step boundary" in job.said())
    os.kill(job.process.pid, signal.SIGTERM)
    job.wait()

    kept = {path.stem: path.read_text() for path in folder.iterdir()}
    assert set(kept) == {"actor-0-told", "coordinator-told", "learner-told"}
    for text in kept.values():
        assert "-- end of the stacks of process" in text
    assert "wait_for_a_judge" in kept["actor-0-told"]
    assert "asyncio tasks: 0" not in kept["coordinator-told"]
    assert {piece.moment for piece in list_evidence(job.run_dir)} == {"told"}
