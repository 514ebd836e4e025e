"""Plain functions of users' environments, called from the event loop: each in a thread, in as few threads as keep up.

Calls that return at once are made one after the other by one thread; where they do not, more threads join in, up to
``THREADS_MAX``. A call that is given up is left to its thread, whose place another takes; what it returns later is
not heard. ``within`` is the deadline of any call of an environment: while a call waits for a thread it has not begun.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from rollout.errors import EngineError

THREADS_MAX = 64
"""Calls at a time."""
HUNG_MAX = 256
"""Threads of this process that may be left to calls which never return."""
TICK_SECONDS = 0.005
"""How long calls may be left waiting before more threads join in: then twice as many, and so on."""
IDLE_SECONDS = 10.0
"""How long a thread waits for another call before it ends."""

T = TypeVar("T")


class Overdue(Exception):  # noqa: N818 - what became of a call
    """A call did not return within its deadline."""


class Deadline:
    """The deadline of the call that this task makes; it stands still while the call waits for a thread."""

    def __init__(self, seconds: float, timeout: asyncio.Timeout) -> None:
        self._seconds, self._timeout = seconds, timeout

    def hold(self) -> None:
        """The call has not begun."""
        if not self._timeout.expired():
            self._timeout.reschedule(None)

    def begin(self) -> None:
        """It begins now."""
        if not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)


_deadline: contextvars.ContextVar[Deadline | None] = contextvars.ContextVar(
    "deadline", default=None
)


async def within(seconds: float, call: Awaitable[T]) -> T:
    """What the call returns. Raises Overdue for one that takes longer, and what it raised itself."""
    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:
            before = _deadline.set(Deadline(seconds, timeout))
            try:
                return await call
            finally:
                _deadline.reset(before)
    except TimeoutError as error:
        if not timeout.expired():
            raise  # its own, of something that it waited for
        raise Overdue(f"no answer within {seconds:g} s") from error


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    """One call. ``thread`` is None before it has begun, and again once it is given up or done."""

    call: Callable[[], Any]
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    deadline: Deadline | None
    thread: threading.Thread | None = None
    over: bool = field(default=False)


class Threads:
    """The threads of one process for users' environments. Threads and event loops share ``_changed``."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._threads: set[threading.Thread] = set()
        self._hung: set[threading.Thread] = set()
        self._joining = 1
        self._growing: asyncio.AbstractEventLoop | None = None

    async def call(self, function: Callable[[], T]) -> T:
        """What the function returns. Raises what it raised; EngineError when too many have never returned."""
        self._require_sound()
        loop, deadline = asyncio.get_running_loop(), _deadline.get()
        job = _Job(call=function, answer=loop.create_future(), loop=loop, deadline=deadline)
        if deadline is not None:
            deadline.hold()
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()
            enough = bool(self._threads)
        if not enough:
            self._join(1)
        self._grow_later(loop)
        try:
            return cast("T", await job.answer)
        finally:
            self._give_up(job)

    def _require_sound(self) -> None:
        with self._changed:
            self._hung = {thread for thread in self._hung if thread.is_alive()}
            number = len(self._hung)
        if number > HUNG_MAX:
            raise EngineError(
                f"{number} calls of environments have never returned: this process is to be started"
                " afresh; give what environments wait for a deadline of its own"
            )

    def _grow_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._growing is not loop:
            self._growing = loop
            loop.call_later(TICK_SECONDS, self._grow, loop)

    def _grow(self, loop: asyncio.AbstractEventLoop) -> None:
        """More threads for what still waits."""
        self._growing = None
        with self._changed:
            left = len(self._waiting)
            number = min(self._joining, left, THREADS_MAX - len(self._threads))
        self._joining = min(2 * self._joining, THREADS_MAX) if left else 1
        self._join(number)
        if left:
            self._grow_later(loop)

    def _join(self, number: int) -> None:
        for _ in range(number):
            thread = threading.Thread(target=self._work, name="environment", daemon=True)
            with self._changed:
                self._threads.add(thread)
            thread.start()

    def _give_up(self, job: _Job) -> None:
        """Nobody waits for this call any more; a thread that is still at it is left to it."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
            thread, job.thread, job.over = job.thread, None, True
            if thread is not None:
                self._threads.discard(thread)
                self._hung.add(thread)

    def _work(self) -> None:
        while (job := self._take()) is not None:
            _tell(job.loop, _begin, job)
            answer = _make(job.call)
            with self._changed:
                if job.over:
                    return  # given up: another thread takes this one's place
                job.thread = None
            _tell(job.loop, _answer, job, answer)

    def _take(self) -> _Job | None:
        thread = threading.current_thread()
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._waiting), IDLE_SECONDS):
                self._threads.discard(thread)
                return None
            job = self._waiting.popleft()
            job.thread = thread
            return job


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *given: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *given)
    except RuntimeError:
        return  # the loop has been closed: nobody waits


def _begin(job: _Job) -> None:
    if job.deadline is not None and not job.answer.done():
        job.deadline.begin()


def _answer(job: _Job, answer: Any | _Raised) -> None:
    if job.answer.done():
        return
    if isinstance(answer, _Raised):
        job.answer.set_exception(answer.error)
    else:
        job.answer.set_result(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raised:
    error: Exception


def _make(call: Callable[[], T]) -> T | _Raised:
    try:
        return call()
    except StopIteration as error:  # no future takes it
        return _Raised(error=RuntimeError(f"StopIteration: {error}"))
    except Exception as error:  # noqa: BLE001 - it is the answer
        return _Raised(error=error)
    except BaseException as error:  # noqa: BLE001 - sys.exit in users' code ends no process of ours
        return _Raised(error=RuntimeError(f"{type(error).__name__}: {error}"))


THREADS = Threads()
"""Of this process."""
