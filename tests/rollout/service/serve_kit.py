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

START_SECONDS = 600.0
COMMAND = (sys.executable, "-c", "from rollout.cli.main import main; main()")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(kw_only=True)
class ServedTraining:
    """One folder's service. ``url`` and ``key`` are there once it has started."""

    home: Path
    base: str = TINY
    more: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    url: str = ""
    key: str = ""
    process: subprocess.Popen | None = None

    def start(self) -> None:
        env = {**os.environ, "ROLLOUT_HOME": str(self.home), "HF_HUB_OFFLINE": "1"}
        words = ["serve", "--train", self.base, "--port", str(self.port), *self.more]
        words += ["--output", "json"]
        said = self.home / "said.json"
        with said.open("w") as out, (self.home / "notes.txt").open("a") as notes:
            self.process = subprocess.Popen(
                [*COMMAND, *words], stdout=out, stderr=notes, env=env, cwd=self.home
            )
        found = self._wait(said)
        self.url, self.key = found["url"], found["key"] or self.key

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    def _wait(self, said: Path) -> dict:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.home / "notes.txt").read_text()
            try:
                return json.loads(said.read_text())
            except ValueError:
                time.sleep(0.1)
        raise AssertionError((self.home / "notes.txt").read_text())
