"""Long-lived asyncio tasks: none of them ends unseen. One way for every process of ours.

A duty that fails is started again, after a pause, a bounded number of times in a row; then its error is that
of whoever depends on it, and ends the process, which its supervisor starts anew. So it is at once where the process
was replaced: nothing that it does counts any more. A duty may also end well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from rollout.errors import Fenced

log = logging.getLogger(__name__)

RESTARTS_MAX = 5
"""Times in a row that a duty is started again."""
PAUSE_SECONDS = 1.0
"""Before the first restart; as many times as long before the later ones."""
STEADY_SECONDS = 300.0
"""A duty that went on for so long before it failed begins to be counted anew."""

T = TypeVar("T")
Duty = Callable[[], Awaitable[None]]


async def keep_going(name: str, duty: Duty, *, pause_seconds: float = PAUSE_SECONDS) -> None:
    """Do ``duty`` until it ends well. Raises what it raised when it fails too often, and Fenced."""
    clock = asyncio.get_running_loop().time
    failures = 0
    while True:
        began = clock()
        try:
            return await duty()
        except Fenced:
            raise
        except Exception as error:
            # The outermost loop of a duty: whatever ends it is counted, told, and not hidden.
            failures = 1 if clock() - began > STEADY_SECONDS else failures + 1
            if failures > RESTARTS_MAX:
                log.exception("duty=%s failed %d times in a row, giving up", name, failures)
                raise
            log.warning(
                "duty=%s failed=%d of %d, starting it again: %s: %s",
                *(name, failures, RESTARTS_MAX, type(error).__name__, error),
                exc_info=True,
            )
        await asyncio.sleep(pause_seconds * failures)


async def until_one_fails(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Raise the first error of ``tasks``; never return, even where all have ended well."""
    await asyncio.gather(*tasks)
    await asyncio.Event().wait()


async def work_beside(work: Coroutine[Any, Any, T], duties: Mapping[str, Duty]) -> T:
    """What ``work`` returns, with ``duties`` done beside it; raises what a duty raised when that comes first."""
    beside = [asyncio.create_task(keep_going(name, duty)) for name, duty in duties.items()]
    working = asyncio.create_task(work)
    failing = asyncio.create_task(until_one_fails(beside))
    try:
        await asyncio.wait({working, failing}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            failing.result()
        return await working
    finally:
        await _cancel((working, failing, *beside))


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, and wait until it has ended: nothing goes on behind its owner."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
