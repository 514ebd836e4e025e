"""Starts contenders as plain processes, and watches what they use while they work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
from operator_plane import SPACE, Plane, free_port, write_json
from operator_sets import jobset_settings, lws_settings

from cluster import build
from rollout_operator.certs.issue import new_authority, new_server

SAMPLE_SECONDS = 0.05
READY_SECONDS_MAX = 120.0
END_SECONDS_MAX = 15.0
CALM_SECONDS = 0.5
CALM_SHARE = 0.1
AS_IN_ITS_IMAGE = """\
import runpy, sys
sys.modules["kubernetes"] = sys.modules["kubernetes_asyncio"] = None
runpy.run_module("rollout_operator", run_name="__main__", alter_sys=True)
"""
"""kopf loads these clients because they are installed for tests; the image has none."""


@dataclass(slots=True, kw_only=True)
class Process:
    """A contender that runs. Samples are (time, CPU seconds so far)."""

    name: str
    popen: subprocess.Popen[str]
    log: Path
    port: int = 0
    samples: list[tuple[float, float]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def follow(self) -> None:
        """Sample until the end."""
        found = psutil.Process(self.popen.pid)
        while not self._ended.wait(SAMPLE_SECONDS):
            try:
                times = found.cpu_times()
            except psutil.NoSuchProcess:
                return
            self.samples.append((time.time(), times.user + times.system))

    def cpu_between(self, began: float, ended: float) -> float:
        """CPU seconds of that time."""
        return self._cpu_at(ended) - self._cpu_at(began)

    def wait_until_calm(self) -> None:
        """Until it has used next to nothing for a moment."""
        time.sleep(CALM_SECONDS)
        while True:
            now = time.time()
            if self.cpu_between(now - CALM_SECONDS, now) < CALM_SHARE * CALM_SECONDS:
                return
            time.sleep(CALM_SECONDS)

    def _cpu_at(self, moment: float) -> float:
        before = [used for at, used in self.samples if at <= moment]
        return before[-1] if before else self.samples[0][1]

    def peak_megabytes(self) -> float:
        """The most resident memory so far."""
        lines = Path(f"/proc/{self.popen.pid}/status").read_text().splitlines()
        found = next(line for line in lines if line.startswith("VmHWM:"))
        return int(found.split()[1]) / 1024

    def metric(self, name: str) -> float:
        """The sum of our operator's series of that name."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def end(self) -> None:
        """Let it go: our operator gives its Lease back. One that does not end is killed."""
        self._ended.set()
        self.popen.terminate()
        try:
            self.popen.communicate(timeout=END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.communicate()


@contextmanager
def operating(plane: Plane, **settings: str) -> Iterator[Process]:
    """Our operator with its shipped settings, ready."""
    port = free_port()
    changes = {"ROLLOUT_HEALTH_PORT": str(port), "ROLLOUT_OPERATOR_NAMESPACE": SPACE, **settings}
    command = [sys.executable, "-c", AS_IN_ITS_IMAGE]
    with _started(plane, "rollout", command, changes) as process:
        process.port = port
        _wait(process, lambda: _is_ready(port))
        yield process


@contextmanager
def rival(plane: Plane, name: str) -> Iterator[Process]:
    """JobSet, LWS or KubeRay with its shipped settings; no webhooks, no Lease."""
    binary = str(build.path(name))
    if name == "kuberay":
        flags = ["--metrics-addr=0", "--health-probe-bind-address=0"]
        command = [binary, *flags, "--enable-leader-election=false"]
    else:
        settings = {"jobset": jobset_settings, "lws": lws_settings}[name]
        document = settings(str(_certificates(plane.folder)), free_port())
        command = [binary, f"--config={write_json(plane.folder / f'{name}.json', document)}"]
    with _started(plane, name, command, {"ENABLE_WEBHOOKS": "false"}) as process:
        yield process


@contextmanager
def twin(plane: Plane, pattern: Path) -> Iterator[Process]:
    """The bare controller-runtime operator."""
    command = [str(build.path("twin")), f"-templates={pattern}"]
    with _started(plane, "twin", command, {}) as process:
        yield process


@contextmanager
def ceiling(plane: Plane, pattern: Path) -> Iterator[Process]:
    """The bare client, connected."""
    script = str(Path(__file__).with_name("operator_ceiling.py"))
    command = [sys.executable, script, str(plane.kubeconfig("ceiling")), str(pattern)]
    with _started(plane, "ceiling", command, {}) as process:
        assert process.popen.stdout is not None
        process.popen.stdout.readline()
        yield process


@contextmanager
def _started(
    plane: Plane, name: str, command: list[str], changes: Mapping[str, str]
) -> Iterator[Process]:
    log = plane.folder / "log" / f"{name}.log"
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig(name)), **changes}
    paths = (str(Path(__file__).parents[2] / "e2e"), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with log.open("ab") as output:
        popen = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if name == "ceiling" else output,
            stderr=output,
            text=True,
        )
    process = Process(name=name, popen=popen, log=log)
    thread = threading.Thread(target=process.follow, daemon=True)
    thread.start()
    try:
        yield process
    finally:
        process.end()
        thread.join()


def _wait(process: Process, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while not ready():
        if process.popen.poll() is not None or time.monotonic() > deadline:
            tail = process.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{process.name} is not ready:\n{tail}")
        time.sleep(0.1)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def _certificates(root: Path) -> Path:
    """A folder with a server certificate, for webhook servers that nobody calls."""
    folder = root / "certificates"
    if not folder.exists():
        folder.mkdir()
        now = datetime.now(UTC)
        made = new_server(new_authority(now), ["localhost"], now)
        (folder / "tls.crt").write_bytes(made.certificate_pem)
        (folder / "tls.key").write_bytes(made.key_pem)
    return folder
