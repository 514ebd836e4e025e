"""One event loop whose time only moves when nobody has anything to do: seconds cost nothing, order is seeded.

Every task belongs to a ``Process``, which may be killed or frozen as the operating system does it. What a
program hands to a thread runs here, after a drawn delay; nothing runs beside anything else.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import selectors
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

THREAD_SECONDS = 0.02
"""Longest time that a hand-over to a thread takes."""


class Stuck(AssertionError):  # noqa: N818 - it is a finding
    """Somebody waits, and no timer of anybody will ever end that."""


class _Selector(selectors.SelectSelector):
    """Waits by moving the clock."""

    now = 0.0

    def select(self, timeout=None):
        if timeout is None:
            raise Stuck("a wait without a deadline: every process waits, and no timer is set")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """``draw`` decides every delay."""

    def __init__(self, draw: random.Random) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self._draw = draw
        self.owed: list[Awaitable] = []
        """What a blocking function has called that takes its time, and nobody waits for."""
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self._virtual.now

    def _write_to_self(self) -> None:
        """Nobody calls from another thread."""

    def add_signal_handler(self, sig, callback, *args):
        """What a process does with a signal is its own."""
        owner = _process.get()
        if owner is not None:
            owner.handlers[sig] = callback

    def run_in_executor(self, executor, func, *args):
        """A call that gives an awaitable stands for a blocking one that takes its time."""

        async def work() -> Any:
            await asyncio.sleep(self._draw.uniform(0.0, THREAD_SECONDS))
            self.owed = []
            value = func(*args)
            owed, self.owed = self.owed, []
            for more in owed:
                await more
            return await value if inspect.isawaitable(value) else value

        return self.create_task(work())


_process: ContextVar[Process | None] = ContextVar("process", default=None)


def find_process() -> Process | None:
    """Whose code is running."""
    return _process.get()


def heed_end(tell: Callable[[], None], loop: Any = None, shows: Any = None) -> None:
    """In place of ``common.stacks.heed_end``: a signal reaches the simulated process that asked for it."""
    owner = _process.get()
    assert owner is not None
    owner.handlers[signal.SIGTERM] = tell


def _make_task(loop, work, *, context: Context | None = None, **named):
    task = asyncio.Task(work, loop=loop, context=context, **named)
    owner = _process.get() if context is None else context.get(_process)
    if owner is not None:
        owner.adopt(task)
    return task


class Process:
    """Everything that dies together. Kept from the outside world while it is frozen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.left = False
        """Whether it was asked to leave: then it is started again."""
        self.said_end = False
        self.died = asyncio.Event()
        self.ended = asyncio.Event()
        self.handlers: dict[int, Callable[[], None]] = {}
        self._tasks: dict[asyncio.Task, None] = {}
        self._going = asyncio.Event()
        self._going.set()

    def adopt(self, task: asyncio.Task) -> None:
        if not self.alive:
            task.cancel()
            return
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def spawn(self, work: Coroutine) -> asyncio.Task:
        """Run ``work`` as a part of this process."""
        context = copy_context()
        context.run(_process.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    @property
    def frozen(self) -> bool:
        return not self._going.is_set()

    def freeze(self) -> None:
        """SIGSTOP: nothing that it does reaches anybody, what it is sent waits."""
        self._going.clear()

    def thaw(self) -> None:
        """SIGCONT."""
        self._going.set()

    async def gate(self) -> None:
        """To be passed before and after everything that others can see."""
        await self._going.wait()
        if not self.alive:
            raise asyncio.CancelledError

    def kill(self) -> None:
        """SIGKILL. ``died`` tells those who wait for an answer."""
        self.alive = False
        self.died.set()
        self._going.set()
        for task in list(self._tasks):
            task.cancel()


def run_virtual(work: Callable[[], Coroutine], draw: random.Random) -> Any:
    """Run to the end in virtual time, then take everything down."""
    loop = VirtualLoop(draw)
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    try:
        return loop.run_until_complete(work())
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()
