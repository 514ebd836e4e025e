"""Shows where a process stands, on standard error, at every SIGUSR1: each thread's stack and each asyncio task.

The stacks are written from C (``faulthandler``), so that a process shows them also while a call into a
library holds the interpreter's lock. The tasks follow from a thread of their own; they are missing when
the main thread never comes back to Python. Standard library only: rollout's own processes use it, too.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from types import FrameType

END = "-- end of the stacks of process"
"""Starts the last line of what a process shows; its id follows."""
STANDARD_ERROR = 2
TASKS_MAX = 100
FRAMES_MAX = 20

_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
_asked_at: list[float] = []


def watch_loop(loop: asyncio.AbstractEventLoop) -> None:
    """From now on the tasks of this loop are shown, too."""
    _loops.add(loop)


def show_on_signal() -> None:
    """Show stacks and tasks at every SIGUSR1 from now on. Outside the main thread: the stacks alone."""
    if threading.current_thread() is not threading.main_thread():
        show_threads_on_signal()
        return
    owner = os.getpid()
    asked, ask = os.pipe()
    os.set_blocking(ask, False)

    def tell(number: int, frame: FrameType | None) -> None:
        del number, frame
        _asked_at[:] = [time.monotonic()]
        if os.getpid() == owner:  # a fork has no thread that answers
            os.write(ask, b"!")

    faulthandler.unregister(signal.SIGUSR1)  # a fork inherits it, and would then not be hooked in
    signal.signal(signal.SIGUSR1, tell)
    faulthandler.register(signal.SIGUSR1, file=STANDARD_ERROR, all_threads=True, chain=True)
    threading.Thread(target=_answer, args=(asked,), daemon=True, name="stacks").start()


def show_threads_on_signal(file: int = STANDARD_ERROR) -> None:
    """Show the threads alone at every SIGUSR1 from now on: for who may have no further thread, or has no tasks."""
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


def show_now(apart_seconds: float) -> None:
    """Show what SIGUSR1 would, unless it has been shown in the last ``apart_seconds`` or nothing heeds it."""
    recent = _asked_at and time.monotonic() - _asked_at[0] < apart_seconds
    if not recent and callable(signal.getsignal(signal.SIGUSR1)):
        signal.raise_signal(signal.SIGUSR1)


def _answer(asked: int) -> None:
    while os.read(asked, 1):
        said = "\n".join((*_describe_tasks(), f"{END} {os.getpid()} --", ""))
        left = said.encode(errors="replace")
        while left:
            left = left[os.write(STANDARD_ERROR, left) :]


def _describe_tasks() -> Iterator[str]:
    tasks = [task for loop in list(_loops) for task in asyncio.all_tasks(loop)]
    yield f"asyncio tasks: {len(tasks)}"
    for task in tasks[:TASKS_MAX]:
        yield f"  {task.get_name()} {getattr(task.get_coro(), '__qualname__', '')}"
        for frame in task.get_stack(limit=FRAMES_MAX):
            yield f'    File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}'
