"""Ends tasks for certain: a cancellation that something on the way has swallowed is said again, a bounded number of times."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

log = logging.getLogger(__name__)

HEED_SECONDS = 1.0
"""How long a task may take to end after it was told."""
TELL_MAX = 5


async def end_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel all and wait for them; one that does not end is named and left behind."""
    left = set(tasks)
    for _ in range(TELL_MAX):
        for task in left:
            task.cancel()
        if left:
            _, left = await asyncio.wait(left, timeout=HEED_SECONDS)
    for task in left:
        log.error("a part of the operator does not end part=%s", task)
