"""Reads the one file that tells a process who it is.

The file may appear after the process: a supervisor starts everything at once and writes it as soon
as the model and the data are resolved, so that imports and resolution run side by side.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from rollout.common.logs import configure_logging
from rollout.common.parent_death import collect_from_here
from rollout.common.stacks import show_on_signal
from rollout.errors import RolloutError, SpecError
from rollout_api.logs import name_process
from rollout_api.visible import visible
from rollout_api.worker import WorkerConfig

CONFIG_SECONDS_MAX = 1800.0
"""How long a process waits for its configuration; downloads of models happen in this time."""
POLL_SECONDS = 0.02
LAST_WORD_VARIABLE = "ROLLOUT_TERMINATION_LOG"
"""Set in pods: the file that the kubelet reads when the container has ended."""
LAST_WORD_CHARACTERS_MAX = 900
"""The operator looks at no more of it."""


def read_worker_config(path: Path, seconds_max: float = CONFIG_SECONDS_MAX) -> WorkerConfig:
    """The configuration, waited for. Raises SpecError when it does not come or is not valid."""
    deadline = time.monotonic() + seconds_max
    while not path.exists():
        if time.monotonic() > deadline:
            raise SpecError(f"{path} did not appear within {seconds_max:.0f} s")
        time.sleep(POLL_SECONDS)
    try:
        return WorkerConfig.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise SpecError(f"{path} is not a worker configuration: {error}") from error


def begin_as(worker: str, path: Path) -> WorkerConfig:
    """The configuration of this process, which logs as ``worker`` of its run from here on. Raises SpecError."""
    config = read_worker_config(path)
    name_process(run=config.run.name, worker=worker)
    return config


def parse_arguments(description: str | None) -> argparse.Namespace:
    """``--config PATH`` and, for actors, ``--index N``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--config", type=Path, required=True, help="the WorkerConfig file")
    parser.add_argument("--index", type=int, default=0, help="this actor's place among the actors")
    return parser.parse_args()


def run_process(main: Callable[[], None]) -> int:
    """Run a process' main function; its exit code, with one line of error for people, and for a pod's status."""
    collect_from_here()
    show_on_signal()
    try:
        configure_logging(os.environ)
        main()
    except RolloutError as error:
        logging.getLogger("rollout").exception("ended by %s", type(error).__name__)
        sys.stderr.write(visible(f"error: {error}\n"))
        leave_word(error)
        return error.exit_code
    except Exception as error:
        leave_word(error)
        raise
    return 0


def leave_word(error: Exception) -> None:
    """``Kind: message`` in one line where the kubelet takes a container's last word from, if there is such a place.

    The operator reads the kind: an exit code cannot tell a missing model from a broken manifest.
    """
    leave_text(f"{type(error).__name__}: {error}")


def leave_text(text: str, characters_max: int = LAST_WORD_CHARACTERS_MAX) -> None:
    """The same of any text."""
    place = os.environ.get(LAST_WORD_VARIABLE)
    if not place or not Path(place).exists():
        return
    word = " ".join(text.split())
    try:
        Path(place).write_text(word[:characters_max] + "\n")
    except OSError as second:
        logging.getLogger("rollout").warning("no last word place=%s error=%s", place, second)
