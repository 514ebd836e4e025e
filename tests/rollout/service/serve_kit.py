"""``rollout serve --train`` as a person starts it: a process that can be killed and started again where it was."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from service_kit import TINY
from warm import start_rollout

from rollout.common.child_processes import Process

START_SECONDS = 600.0
COMMAND = (sys.executable, "-c", "from rollout.cli.main import main; main()")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(kw_only=True)
class ServedTraining:
    """One folder's service. ``url`` and ``key`` are there once it has started; ``plain``: not by what is warm."""

    home: Path
    base: str = TINY
    more: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    url: str = ""
    key: str = ""
    plain: bool = False
    process: Process | None = None

    def start(self) -> None:
        words = ["serve", "--train", self.base, "--port", str(self.port), *self.more]
        words += ["--output", "json"]
        said, notes = self.home / "said.json", self.home / "notes.txt"
        with said.open("w") as out, notes.open("a") as err:
            self.process = self._begin(words, out.fileno(), err.fileno())
        found = wait_for_json(self.process, said, notes)
        self.url, self.key = found["url"], found["key"] or self.key

    def _begin(self, words: list[str], out: int, err: int) -> Process:
        own = {"ROLLOUT_HOME": str(self.home)}
        if not self.plain:
            return start_rollout(*words, folder=self.home, out=out, err=err, environment=own)
        env = {**os.environ, **own, "HF_HUB_OFFLINE": "1"}
        return subprocess.Popen([*COMMAND, *words], stdout=out, stderr=err, env=env, cwd=self.home)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGINT)
        return self.process.wait(60)


def wait_for_json(process: Process, said: Path, notes: Path) -> dict:
    """What a command prints once it serves."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, notes.read_text()
        try:
            return json.loads(said.read_text())
        except ValueError:
            time.sleep(0.1)
    raise AssertionError(notes.read_text())
