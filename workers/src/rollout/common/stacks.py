"""Has the processes of a run show where they stand: on SIGUSR1, and at the first SIGTERM where ``heed_end`` is in force.

What is shown, and how, is ``rollout_vllm.stacks``, which runs inside vLLM's server, too. Whoever ends a process
that does not move asks it first.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from rollout.common.child_processes import descendants
from rollout_vllm.stacks import (
    END,
    STANDARD_ERROR,
    show_now,
    show_on_signal,
    show_threads_on_signal,
    watch_loop,
)

__all__ = [
    "END",
    "STANDARD_ERROR",
    "ask_for_stacks",
    "heed_end",
    "run_loop",
    "show_on_signal",
    "show_threads_on_signal",
]

T = TypeVar("T")

PROCESSES_MAX = 256
TURN_SECONDS = 0.05
"""How long a process that another one started has to write its stacks before the next is asked: ten times what it takes."""
ALL_TURNS_SECONDS_MAX = 1.0
AGAIN_SECONDS_MIN = 10.0
"""Who ends a process asks it first: what was shown so shortly before a SIGTERM is not shown again."""


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` whose tasks are shown."""
    with asyncio.Runner() as runner:
        watch_loop(runner.get_loop())
        return runner.run(main)


def heed_end(
    tell: Callable[[], None],
    loop: asyncio.AbstractEventLoop | None = None,
    shows: Callable[[], bool] = lambda: True,
) -> None:
    """Call ``tell`` at every SIGTERM and SIGINT, in ``loop`` where there is one, else in the main thread.

    The first SIGTERM shows stacks before, if ``shows`` says so then: not from the loop, which may stand still.
    """
    first = [True]

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGTERM and first:
            first.clear()
            if shows():
                show_now(AGAIN_SECONDS_MIN)
        if loop is None:
            tell()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(tell)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def ask_for_stacks(pid: int) -> tuple[int, ...]:
    """Ask a process and all that it started, itself last; the ids of those that will answer.

    One after the other: they write into one log, in pieces, and would cut each other's lines.
    """
    asked = tuple(one for one in [pid, *descendants(pid)][:PROCESSES_MAX] if _heeds(one))
    pause = min(TURN_SECONDS, ALL_TURNS_SECONDS_MAX / max(1, len(asked)))
    for one in reversed(asked):
        with suppress(ProcessLookupError):  # it has ended since
            os.kill(one, signal.SIGUSR1)
        if one != pid:
            time.sleep(pause)
    return asked


def _heeds(pid: int) -> bool:
    """Whether a process has a handler for SIGUSR1, which would end it otherwise."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line for line in lines if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)
