"""Follows a page as a person does: its commands one after the other, each block held to the output that the page shows.

A shown output is a `text` block right behind its commands; `...` stands for anything, spaces for any number of spaces, as
in doctest. A command whose comment is `Ctrl-C` is interrupted once its run has taken two steps.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warm import run_rollout, start_rollout

from rollout.errors import LedgerError
from rollout.ledger.sqlite.reader import LedgerReader

_BLOCK = re.compile(r"^```sh\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_CHECKER = doctest.OutputChecker()
_AS_SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SECONDS_MAX = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A block of commands, and what they print; None: the page does not say."""

    commands: tuple[str, ...]
    output: str | None


def shown(page: Path) -> list[Shown]:
    """What a page shows, in its order."""
    return [
        Shown(commands=tuple(commands.splitlines()), output=output or None)
        for commands, output in _BLOCK.findall(page.read_text(encoding="utf-8"))
    ]


def follow(page: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Type all of a page's commands in ``folder``; fails where one fails, or prints something else."""
    for block in shown(page):
        said = "".join(_type(command, folder, environment) for command in block.commands)
        if block.output is not None and not _CHECKER.check_output(block.output, said, _AS_SHOWN):
            raise AssertionError(
                f"{page.name} shows\n{block.output}\nand its commands print\n{said}"
            )


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
