"""Programs in cells by the command line, as a user has them, and what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

PROGRAMS = Path(__file__).parent / "programs"
ROLLOUT = (sys.executable, "-m", "rollout")
WAIT_SECONDS_MAX = 300.0


class Programs:
    """A home of cells, and the commands that work on it."""

    def __init__(self, criu: Path, folder: Path) -> None:
        self.home = folder / "home"
        self.folder = folder
        self.env = {
            **{key: one for key, one in os.environ.items() if key != "ROLLOUT_PROCESS"},
            "ROLLOUT_HOME": str(self.home),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "ROLLOUT_CRIU": str(criu),
            "OMP_NUM_THREADS": "1",
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.started:
            one.kill()
            one.wait()

    def begin(self, output: str, *words: str, **env: str) -> subprocess.Popen[bytes]:
        """A command that goes on for a while; what it prints goes to a file of the folder."""
        with (self.folder / output).open("wb") as out:
            one = subprocess.Popen(
                [*ROLLOUT, "process", *words],
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
        self.started.append(one)
        return one

    def call(self, *words: str, code: int = 0, **env: str) -> str:
        """What a command prints, both streams; it must end with ``code``."""
        done = subprocess.run(
            [*ROLLOUT, *words],
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def go(self) -> None:
        """No program of this home waits any more."""
        (self.folder / "go").touch()

    def save(self, name: str, *words: str) -> dict:
        """An image."""
        text = self.call("process", "save", name, *words, "--output", "json")
        return json.loads(text[text.index("{") :])

    def lines(self, output: str) -> list[str]:
        """What a command has printed so far."""
        return (self.folder / output).read_text().splitlines()

    def wait_for(self, output: str, word: str, count: int = 1) -> list[str]:
        """Until so many lines begin with a word."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            lines = self.lines(output)
            found = [line for line in lines if line.startswith(word)]
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline, lines[-20:]
            assert all(one.poll() is None for one in self.started[-1:]), lines[-20:]
            time.sleep(0.02)


def run_alone(folder: Path, *words: str) -> list[str]:
    """What a program prints that is in no cell, and that nobody keeps waiting."""
    alone = folder / "alone"
    alone.mkdir(exist_ok=True)
    (alone / "go").touch()
    env = {key: one for key, one in os.environ.items() if key != "ROLLOUT_PROCESS"}
    done = subprocess.run(
        words,
        cwd=alone,
        env={**env, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def steps_of(lines: list[str]) -> list[str]:
    """The lines that tell of steps."""
    return [line for line in lines if line.startswith("step ")]
