"""Types a page's `rollout` commands on this machine. One whose comment is `Ctrl-C` is interrupted once its run has taken two steps."""

from __future__ import annotations

import os
import shlex
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from warm import run_rollout, start_rollout

from rollout.errors import LedgerError
from rollout.ledger.sqlite.reader import LedgerReader

SECONDS_MAX = 400.0


def typist(folder: Path, environment: Mapping[str, str]) -> Callable[[str], str]:
    """Who types in ``folder``; ``environment`` is added to ours."""
    return lambda command: _type(command, folder, environment)


def _type(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    words = shlex.split(command, comments=True)
    assert words[0] == "rollout", command
    if command.rpartition("# ")[2] == "Ctrl-C":
        return _interrupt(words[1:], folder, environment)
    done = run_rollout(*words[1:], folder=folder, environment=environment, seconds_max=SECONDS_MAX)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def _interrupt(words: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    before = {path.parent for path in folder.glob("runs/*/ledger.db")}
    with tempfile.TemporaryFile() as said:
        run = start_rollout(
            *words, folder=folder, out=said.fileno(), err=said.fileno(), environment=environment
        )
        try:
            while _steps_of_new(folder, before) < 2:
                assert run.poll() is None, "it ended before it was interrupted"
                time.sleep(0.05)
            os.kill(run.pid, signal.SIGINT)
            assert run.wait(SECONDS_MAX) == 130
        finally:
            if run.poll() is None:
                run.kill()
                run.wait()
        said.seek(0)
        return said.read().decode()


def _steps_of_new(folder: Path, before: set[Path]) -> int:
    for path in folder.glob("runs/*/ledger.db"):
        if path.parent not in before:
            try:
                with LedgerReader(path) as ledger:
                    return len(ledger.steps())
            except LedgerError:  # it is being made
                return 0
    return 0
