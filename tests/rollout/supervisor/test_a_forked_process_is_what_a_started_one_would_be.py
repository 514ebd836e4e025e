"""A process of the fork server: our own child, and in nothing else than its imports another than ``python -m``'s."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from warm import outside_of_tests

from rollout.common.child_processes import (
    Process,
    ProcessSpec,
    end_processes,
    open_pidfd,
    start_process,
)
from rollout.supervisor import fork_server
from rollout.supervisor.display.progress import SilentDisplay
from rollout.supervisor.fork_server import (
    ForkedProcess,
    ForkServerFailed,
    WarmStarts,
    open_fork_server,
    open_starts,
)
from rollout.supervisor.supervisor import Supervisor
from rollout.supervisor.watch import Bounds

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

FACTS = """
import gc, json, os, random, resource, signal, sys, threading
import numpy, torch
libc_limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
own = {int(name) for name in os.listdir("/proc/self/fd")}
numpy.ones((256, 256)) @ numpy.ones((256, 256))  # pools of threads are forgotten by a fork, and made at their next use
facts = {
    "parent": os.getppid(), "leads its session": os.getsid(0) == os.getpid(), "group": os.getpgrp() == os.getpid(),
    "name": __name__, "argv": sys.argv[1:], "module": __spec__.name, "folder": os.getcwd(), "path": sys.path,
    "environment": dict(os.environ), "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "handlers": {str(n): str(signal.getsignal(n)) for n in signal.valid_signals()},
    "umask": os.umask(0o022), "limits": libc_limits, "files": sorted(own - {max(own)}),
    "stdin": os.readlink("/proc/self/fd/0"), "same out": os.fstat(1) == os.fstat(2), "buffered": sys.stdout.line_buffering,
    "appends": os.get_inheritable(2), "threads": threading.active_count(), "torch threads": torch.get_num_threads(),
    "interop": torch.get_num_interop_threads(),
    "dtype": str(torch.get_default_dtype()), "exact": torch.are_deterministic_algorithms_enabled(),
    "precision": torch.get_float32_matmul_precision(), "cuda": torch.cuda.is_initialized(),
    "product": (torch.arange(4096.0).reshape(64, 64) / 7).matmul(torch.ones(64, 64)).sum().item(),
    "collects": gc.isenabled(), "title": open("/proc/self/cmdline").read().rstrip(chr(0)).split(chr(0)),
    "kernel threads": len(os.listdir("/proc/self/task")),
}
print(json.dumps(facts))
drawn = [random.random(), float(numpy.random.rand()), torch.rand(()).item()]
sys.stderr.write(json.dumps(drawn) + "\\n")
sys.exit(7)
"""

SLEEPER = """
import time
print("awake", flush=True)
while True:  # in short sleeps: Python heeds a signal that comes just before a sleep only after it
    time.sleep(0.1)
"""


@pytest.fixture(scope="module", params=["1", "2"])
def threads(request) -> str:
    """Both kinds are started with one thread, and with several."""
    return request.param


@pytest.fixture(scope="module")
def place(tmp_path_factory, threads) -> Path:
    """Its logs are of one server: what an earlier process has said is not taken for what a later one says."""
    folder = tmp_path_factory.mktemp("forked")
    (folder / "facts.py").write_text(FACTS)
    (folder / "entry.py").write_text("import torch, numpy\n")
    (folder / "sleeper.py").write_text(SLEEPER)
    return folder


@pytest.fixture(scope="module")
def environment(place, threads) -> dict[str, str]:
    """What both kinds are started with."""
    path = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
    return {**outside_of_tests(), "PYTHONPATH": path, "OMP_NUM_THREADS": threads}


@pytest.fixture(scope="module")
def server(environment, place):
    server = open_fork_server(["entry"], environment, place / "log")
    yield server
    server.close()


def ready(server):
    """Its descriptor tells when to look."""
    while not server.is_ready():
        assert server.descriptor >= 0
    return server


def spec_of(place: Path, name: str, module: str = "facts") -> ProcessSpec:
    return ProcessSpec(
        name=name, role="learner", module=module, arguments=("--index", "3"), log=place / name
    )


@pytest.fixture
def both(server, environment, place, monkeypatch):
    """The same process, forked and started."""
    monkeypatch.setattr(fork_server, "FORKED", frozenset({"facts", "sleeper"}))
    monkeypatch.chdir(place)
    warm = WarmStarts(server=ready(server), note=pytest.fail)
    with (place / "lock").open("w") as lock:
        number = lock.fileno()

        def fork(name: str, module: str = "facts") -> ForkedProcess:
            """One that is no fork after all would pass for what a started one is."""
            take_over(environment, monkeypatch)
            process = warm.start(spec_of(place, name, module), keep=(number,))
            assert isinstance(process, ForkedProcess)
            return process

        def start(name: str) -> Process:
            take_over(environment, monkeypatch)
            return start_process(spec_of(place, name), keep=(number,))

        yield fork, start


def take_over(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it ours, from within a test: pytest sets a variable anew for each of its phases."""
    for name in os.environ.keys() - environment.keys():
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def told(process, log: Path) -> tuple[dict, list[float]]:
    assert process.wait(120) == process.poll() == process.returncode == 7, log.read_text()
    facts, drawn = sorted(log.read_text().splitlines(), reverse=True)
    log.unlink()
    return json.loads(facts), json.loads(drawn)


def test_its_place_its_files_its_signals_and_its_numbers_are_the_same(both, place):
    fork, start = both

    forked, _ = told(fork("forked"), place / "forked")
    started, _ = told(start("started"), place / "started")

    assert isinstance(forked["parent"], int)
    assert forked["parent"] == os.getpid()
    assert forked == started


def test_numbers_that_nobody_seeded_differ(both, place):
    fork, _ = both

    draws = [told(fork(f"draw-{n}"), place / f"draw-{n}")[1] for n in range(3)]

    assert [len(set(of_one_library)) for of_one_library in zip(*draws, strict=True)] == [3, 3, 3]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_a_signal_does_to_it_is_its_exit_code(both, place, number):
    fork, _ = both
    process = fork(number.name, "sleeper")
    while "awake" not in (place / number.name).read_text():
        assert process.poll() is None

    process.send_signal(number)

    assert process.wait(60) == -number


def test_its_end_is_ours_to_see_and_a_signal_is_its_exit_code(both, place):
    fork, _ = both
    process = fork("slept", "sleeper")
    descriptor = open_pidfd(process.pid)
    assert psutil.Process(process.pid).ppid() == os.getpid()
    assert process.poll() is None

    end_processes([process], grace_seconds=30.0)

    assert process.returncode == -signal.SIGTERM
    os.close(descriptor)


PARENT = """
import os, sys, time
from pathlib import Path
from rollout.supervisor import fork_server
from rollout.common.child_processes import ProcessSpec
fork_server.FORKED = frozenset({"sleeper"})
folder = Path(sys.argv[1])
server = fork_server.open_fork_server([], dict(os.environ), folder / "log-of-parent")
while not server.is_ready():
    pass
spec = ProcessSpec(name="x", role="actor", module="sleeper", arguments=(), log=folder / "orphan")
process = fork_server.WarmStarts(server=server).start(spec)
while "awake" not in spec.log.read_text():
    time.sleep(0.01)
print(process.pid, server._process.pid, flush=True)
time.sleep(120)
"""


def test_it_and_its_server_die_with_the_one_that_asked(place, environment):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(place)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert [child.ppid() for child in children] == [parent.pid] * 2

    parent.kill()
    parent.wait()

    gone, alive = psutil.wait_procs(children, timeout=30)
    assert (len(gone), alive) == (2, [])


def test_where_the_server_has_died_it_is_started_plainly_and_that_is_said(
    environment, place, monkeypatch
):
    monkeypatch.setattr(fork_server, "FORKED", frozenset({"facts"}))
    take_over(environment, monkeypatch)
    notes: list[str] = []
    warm = WarmStarts(
        server=ready(open_fork_server([], environment, place / "log")), note=notes.append
    )
    warm.server._process.kill()
    warm.server._process.wait()

    facts, _ = told(warm.start(spec_of(place, "after")), place / "after")

    assert facts["parent"] == os.getpid()
    assert len(notes) == 1
    assert "processes are started plainly" in notes[0]
    assert warm.descriptor == -1


def test_a_server_that_cannot_import_is_given_up(environment, place):
    server = open_fork_server(["no_such_module"], environment, place / "log")

    with pytest.raises(ForkServerFailed, match="it ended while it imported"):
        ready(server)

    server.close()
    assert "no_such_module" in (place / "log").read_text()


def test_another_environment_than_libraries_have_read_is_not_served(server, environment):
    assert server.serves({**environment, "ROLLOUT_RUN_DIR": "/elsewhere"})
    assert not server.serves({**environment, "OMP_NUM_THREADS": "7"})
    assert not server.serves({**environment, "HF_HOME": "/elsewhere"})


@pytest.mark.parametrize("switch", ["0", None])
def test_devices_and_the_switch_keep_starts_plain(tmp_path, monkeypatch, switch):
    if switch is not None:
        monkeypatch.setenv("ROLLOUT_FORK_SERVER", switch)
    learner = spec_of(tmp_path, "learner", "rollout.entrypoints.learner")

    starts = open_starts([learner], tmp_path, accelerators=0 if switch else 1)

    assert starts.server is None
    assert starts.is_ready(learner)


class Importing(WarmStarts):
    """A server that never gets ready."""

    def is_ready(self, spec: ProcessSpec) -> bool:
        return spec.module not in fork_server.FORKED


def test_ctrl_c_before_the_workers_could_start_ends_the_run(tmp_path):
    told: list[str] = []
    poller = SimpleNamespace(
        latest=None,
        silent_seconds=0.0,
        start=lambda: os.kill(os.getpid(), signal.SIGINT),
        stop_run=told.append,
        poll_now=lambda: None,
        close=lambda: None,
    )
    with (tmp_path / "lock").open("w") as lock:
        supervisor = Supervisor(
            [spec_of(tmp_path, "learner", "rollout.entrypoints.learner")],
            poller=poller,
            display=SilentDisplay(),
            bounds=Bounds(pre_running_seconds=300, active_seconds=300, no_progress_seconds=300),
            lock_fileno=lock.fileno(),
            starts=Importing(server=None),
        )
        supervisor.start()
        before = signal.signal(signal.SIGINT, lambda *_: supervisor._interrupt(signal.SIGINT, None))
        try:
            ended = supervisor.run()
        finally:
            signal.signal(signal.SIGINT, before)

    assert (ended.exit_code, ended.message) == (130, "Interrupted")
    assert told == ["Interrupted"]
