"""Shows where a process stands: every thread's stack and every asyncio task, on standard error.

At every SIGUSR1, and at the first SIGTERM of a process whose handler is set by ``heed_end``.

The stacks are written from C (``faulthandler``), so that a process shows them also while a call into a
library holds the interpreter's lock. The tasks follow from a thread of their own; they are missing when
the main thread never comes back to Python. Whoever ends a process that does not move asks first.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

END = "-- end of the stacks of process"
"""Starts the last line of what a process shows; its id follows."""
STANDARD_ERROR = 2
TASKS_MAX = 100
FRAMES_MAX = 20
PROCESSES_MAX = 256
AGAIN_SECONDS_MIN = 10.0
"""Who ends a process asks it first: what was shown so shortly before a SIGTERM is not shown again."""

_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
_shown_at: list[float] = []


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` whose tasks are shown."""
    with asyncio.Runner() as runner:
        _loops.add(runner.get_loop())
        return runner.run(main)


def show_on_signal() -> None:
    """Show stacks and tasks at every SIGUSR1 from now on. A no-op outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return
    asked, ask = os.pipe()
    os.set_blocking(ask, False)

    def tell(number: int, frame: FrameType | None) -> None:
        del number, frame
        _shown_at[:] = [time.monotonic()]
        os.write(ask, b"!")

    faulthandler.unregister(signal.SIGUSR1)  # a fork inherits it, and would then not be hooked in
    signal.signal(signal.SIGUSR1, tell)
    faulthandler.register(signal.SIGUSR1, file=STANDARD_ERROR, all_threads=True, chain=True)
    threading.Thread(target=_answer, args=(asked,), daemon=True, name="stacks").start()


def show_threads_on_signal(file: int = STANDARD_ERROR) -> None:
    """Show the threads alone at every SIGUSR1 from now on: for who may have no further thread, or has no tasks."""
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


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
                _show()
        if loop is None:
            tell()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(tell)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _show() -> None:
    """Show stacks and tasks now, where ``show_on_signal`` is in force and nobody has asked a moment ago."""
    recent = _shown_at and time.monotonic() - _shown_at[0] < AGAIN_SECONDS_MIN
    if not recent and callable(signal.getsignal(signal.SIGUSR1)):
        signal.raise_signal(signal.SIGUSR1)


def ask_for_stacks(pid: int) -> tuple[int, ...]:
    """Ask a process and all that it started; the ids of those that will answer."""
    asked = tuple(one for one in _family(pid) if _heeds(one))
    for one in asked:
        with suppress(ProcessLookupError):  # it has ended since
            os.kill(one, signal.SIGUSR1)
    return asked


def _answer(asked: int) -> None:
    while os.read(asked, 1):
        sys.stderr.write("\n".join((*_describe_tasks(), f"{END} {os.getpid()} --", "")))
        sys.stderr.flush()


def _describe_tasks() -> Iterator[str]:
    tasks = [task for loop in list(_loops) for task in asyncio.all_tasks(loop)]
    yield f"asyncio tasks: {len(tasks)}"
    for task in tasks[:TASKS_MAX]:
        yield f"  {task.get_name()} {getattr(task.get_coro(), '__qualname__', '')}"
        for frame in task.get_stack(limit=FRAMES_MAX):
            yield f'    File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}'


def _heeds(pid: int) -> bool:
    """Whether a process has a handler for SIGUSR1, which would end it otherwise."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line for line in lines if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def _family(pid: int) -> list[int]:
    """A process and its descendants, those of other sessions included; nothing when it is gone."""
    import psutil

    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [pid, *(child.pid for child in children)][:PROCESSES_MAX]
