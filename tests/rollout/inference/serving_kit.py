"""``rollout infer serve`` as a person starts it: a process, its printed address and key."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from warm import start_rollout

from rollout.common.child_processes import Process

START_SECONDS = 600.0


@dataclass(frozen=True)
class Serving:
    """A running command: what it printed."""

    process: Process
    url: str
    key: str
    models: list[str]
    home: Path

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        os.kill(self.process.pid, signal.SIGINT)
        return self.process.wait(60)


@contextmanager
def serving(home: Path, *words: str) -> Iterator[Serving]:
    """Serve until the block ends."""
    said = home / "said.json"
    with said.open("w") as out, (home / "notes.txt").open("w") as notes:
        process = start_rollout(
            *("infer", "serve", *words, "--port", "0", "--output", "json"),
            folder=home,
            out=out.fileno(),
            err=notes.fileno(),
            environment={"ROLLOUT_HOME": str(home)},
        )
    try:
        found = _wait_for(process, said, home)
        yield Serving(process=process, home=home, **found)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def _wait_for(process: Process, said: Path, home: Path) -> dict:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, (home / "notes.txt").read_text()
        try:
            return json.loads(said.read_text())
        except ValueError:
            time.sleep(0.1)
    raise AssertionError((home / "notes.txt").read_text())
