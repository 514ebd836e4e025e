"""Calls into users' environments: each under a deadline of its own, in as few threads as keep up.

Calls that return at once are made one after the other by one thread; where they do not, more threads join
in, up to ``THREADS_MAX``. A call that is past its deadline is given up: its thread is left to itself, what it
returns later is not heard, and the others are not held up.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rollout.errors import EngineError

THREADS_MAX = 64
"""Calls of one round at a time."""
HUNG_MAX = 256
"""Threads of this process that may be left to calls which never return."""
TICK_SECONDS = 0.005
"""How long calls may be left waiting before more threads join in: then twice as many, and so on."""

T = TypeVar("T")


class Overdue(Exception):  # noqa: N818 - what became of a call
    """A call did not return within its deadline."""


_hung: set[threading.Thread] = set()


async def call_each(calls: Sequence[Callable[[], T]], seconds_max: float) -> list[T | Exception]:
    """What each call returned or raised; ``Overdue`` for those that took longer than ``seconds_max``.

    Raises EngineError when too many calls of this process have never returned: it is to be started afresh.
    """
    if not calls:
        return []
    _hung.intersection_update([thread for thread in _hung if thread.is_alive()])
    if len(_hung) > HUNG_MAX:
        raise EngineError(
            f"{len(_hung)} calls of environments have never returned: this process is to be started"
            " afresh; give what environments wait for a deadline of its own"
        )
    return await _Round(calls, seconds_max).run()


class _Round(Generic[T]):
    """Some calls under way. Threads and the event loop share ``_lock``."""

    def __init__(self, calls: Sequence[Callable[[], T]], seconds_max: float) -> None:
        self._calls = calls
        self._seconds_max = seconds_max
        self._lock = threading.Lock()
        self._left = deque(range(len(calls)))
        self._began: dict[int, tuple[float, threading.Thread]] = {}
        self._answers: dict[int, T | Exception] = {}
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()

    async def run(self) -> list[T | Exception]:
        joining = 1
        try:
            while len(self._answers) < len(self._calls):
                joining = self._join(joining)
                await self._wait()
                self._give_up()
        finally:
            with self._lock:
                self._left.clear()
        return [self._answers[number] for number in range(len(self._calls))]

    def _join(self, wanted: int) -> int:
        """Start threads for what is left; how many to start the next time."""
        with self._lock:
            number = min(wanted, len(self._left), THREADS_MAX - len(self._began))
        for _ in range(number):
            threading.Thread(target=self._work, name="environment", daemon=True).start()
        return min(2 * wanted, THREADS_MAX)

    async def _wait(self) -> None:
        """Until all is done, more threads are due, or a call is overdue."""
        with self._lock:
            oldest = min((began for began, _ in self._began.values()), default=None)
            more = bool(self._left) and len(self._began) < THREADS_MAX
        if more or oldest is None:
            seconds = TICK_SECONDS
        else:
            seconds = max(TICK_SECONDS, oldest + self._seconds_max - time.monotonic())
        try:
            await asyncio.wait_for(self._done.wait(), seconds)
        except TimeoutError:
            return

    def _give_up(self) -> None:
        with self._lock:
            late = time.monotonic() - self._seconds_max
            for number in [one for one, (began, _) in self._began.items() if began <= late]:
                self._answers[number] = Overdue(f"no answer within {self._seconds_max:g} s")
                _hung.add(self._began.pop(number)[1])

    def _work(self) -> None:
        while (number := self._take()) is not None:
            answer = _make(self._calls[number])
            with self._lock:
                if self._began.pop(number, None) is None:
                    return  # given up: another thread has taken this one's place
                self._answers[number] = answer
                if len(self._answers) == len(self._calls):
                    self._tell()

    def _take(self) -> int | None:
        with self._lock:
            if not self._left:
                return None
            number = self._left.popleft()
            self._began[number] = (time.monotonic(), threading.current_thread())
            return number

    def _tell(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._done.set)


def _make(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - it is the answer
        return error
    except BaseException as error:  # noqa: BLE001 - sys.exit in users' code ends no process of ours
        return RuntimeError(f"{type(error).__name__}: {error}")
