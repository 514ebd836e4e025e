"""No server outlives its actor: the guard ends the whole process group, whatever ended the actor."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from rollout.engines.vllm.command import VllmSettings
from rollout.engines.vllm.server import GUARD, GuardedProcess, VllmServer, start_server
from rollout.errors import EngineError

pytestmark = pytest.mark.process

WAIT_SECONDS_MAX = 60.0

STUBBORN_TREE = """
import os, pathlib, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"],
    stdout=subprocess.PIPE)
child.stdout.readline()
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""
"""A server whose engine process does not end on SIGTERM nor with its parent, as vLLM's may."""

ACTOR = """
import os, sys, time
from pathlib import Path
from rollout.engines.vllm.server import GuardedProcess
folder = Path(sys.argv[1])
GuardedProcess([sys.executable, "-c", sys.argv[2], str(folder / "pids")], {},
    log_path=folder / "log", work_dir=folder, grace_seconds=0.2)
if os.fork() == 0:
    time.sleep(600)  # a child of the actor that inherits its end of the guard's pipe
time.sleep(600)
"""


def wait_for(condition) -> bool:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def read_pids(path: Path) -> list[int]:
    assert wait_for(lambda: path.exists() and len(path.read_text().split()) == 2)
    return [int(pid) for pid in path.read_text().split()]


def start_tree(folder: Path, grace_seconds: float = 0.2) -> tuple[GuardedProcess, list[int]]:
    process = GuardedProcess(
        [sys.executable, "-c", STUBBORN_TREE, str(folder / "pids")],
        {},
        log_path=folder / "logs" / "server.log",
        work_dir=folder,
        grace_seconds=grace_seconds,
    )
    return process, read_pids(folder / "pids")


def test_killing_the_actor_outright_leaves_no_server_behind(tmp_path):
    actor = subprocess.Popen(
        [sys.executable, "-c", ACTOR, str(tmp_path), STUBBORN_TREE], start_new_session=True
    )
    try:
        pids = read_pids(tmp_path / "pids")

        actor.kill()
        actor.wait()

        assert wait_for(lambda: all(ended(pid) for pid in pids))
    finally:
        os.killpg(actor.pid, signal.SIGKILL)


def test_stopping_ends_what_ignores_sigterm_too(tmp_path):
    process, pids = start_tree(tmp_path)

    process.stop()
    process.stop()

    assert all(ended(pid) for pid in pids)
    assert process.exit_code is not None


def test_a_server_killed_outright_takes_its_children_along(tmp_path):
    process, (server, child) = start_tree(tmp_path)

    os.kill(server, signal.SIGKILL)

    assert wait_for(lambda: process.exit_code is not None)
    assert ended(child)
    process.stop()


def test_killing_the_guard_leaves_nothing_once_the_actor_stops_it(tmp_path):
    process, pids = start_tree(tmp_path)

    os.kill(process.pid, signal.SIGKILL)
    process.stop()

    assert wait_for(lambda: all(ended(pid) for pid in pids))


def test_the_guard_passes_on_how_the_server_ended(tmp_path):
    process = GuardedProcess(
        [sys.executable, "-c", "print('no room'); raise SystemExit(7)"],
        {},
        log_path=tmp_path / "server.log",
        work_dir=tmp_path,
        grace_seconds=1.0,
    )

    assert wait_for(lambda: process.exit_code is not None)
    assert process.exit_code == 7
    assert process.log_tail() == "no room"
    process.stop()


def test_the_guard_needs_nothing_but_the_standard_library():
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", GUARD, str(os.getpid()), "1", "/bin/true"],
        start_new_session=True,
        stdin=subprocess.PIPE,
    )

    assert guard.wait(WAIT_SECONDS_MAX) == 0


def fake_server(folder: Path, program: str, seconds: float) -> VllmServer:
    settings = VllmSettings(
        model_dir=folder,
        log_path=folder / "vllm.log",
        dtype="float32",
        max_model_length=16,
        vocab_size=8,
        start_seconds_max=seconds,
        stop_seconds_max=0.2,
    )
    process = GuardedProcess(
        [sys.executable, "-c", program],
        {},
        log_path=settings.log_path,
        work_dir=folder,
        grace_seconds=0.2,
    )
    return VllmServer(settings, folder / "private", process)


@pytest.fixture
def short_path():
    """A folder whose sockets have short names."""
    with tempfile.TemporaryDirectory(prefix="guard-", dir="/tmp") as folder:
        yield Path(folder)


async def test_a_server_that_ends_while_starting_is_an_error_with_its_last_words(short_path):
    server = fake_server(short_path, "raise SystemExit('no such model')", 30.0)

    with pytest.raises(EngineError, match="no such model"):
        await server.wait_healthy()

    await server.stop()


async def test_a_server_that_does_not_come_up_in_time_is_an_error(short_path):
    server = fake_server(short_path, "import time; time.sleep(600)", 0.3)

    with pytest.raises(EngineError, match=r"was not up within 0\.3 s"):
        await server.wait_healthy()

    await server.stop()
    assert not server.healthy


async def test_a_start_given_up_leaves_no_process_and_no_folder(short_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    settings = VllmSettings(
        model_dir=short_path / "no-model",
        log_path=short_path / "vllm.log",
        dtype="float32",
        max_model_length=16,
        vocab_size=8,
    )

    others = set(psutil.Process().children(recursive=True))
    starting = asyncio.create_task(start_server(settings))
    while not (mine := set(psutil.Process().children(recursive=True)) - others):
        assert not starting.done(), await starting
        await asyncio.sleep(0.02)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)

    assert starting.cancelled()
    assert mine
    assert wait_for(lambda: all(ended(process.pid) for process in mine))
    assert not list(short_path.glob("rollout-*"))
