"""Cuts connections whose server has fallen silent: no wait without an end.

The server's own time limits do not help when it hangs, nor the kernel's when only it answers. Shutting
the socket down wakes whoever waits on it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import Connection

LOOKS_PER_TERM = 4


class ConnectionWatch:
    """A thread that cuts each watched connection ``seconds`` after its watch began."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends: dict[int, float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger-watch", daemon=True)
        self._thread.start()

    @contextmanager
    def over(self, connection: Connection) -> Iterator[None]:
        """Watch a connection for as long as the block runs."""
        # A descriptor of our own: the connection's may be closed, and given away, at any moment.
        mine = os.dup(connection.fileno())
        with self._lock:
            self._ends[mine] = time.monotonic() + self._seconds
        try:
            yield
        finally:
            with self._lock:
                del self._ends[mine]
            os.close(mine)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds / LOOKS_PER_TERM):
            now = time.monotonic()
            with self._lock:
                for number in [number for number, end in self._ends.items() if end <= now]:
                    _cut(number)


def _cut(number: int) -> None:
    with socket.socket(fileno=os.dup(number)) as wire:
        try:
            wire.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # It is gone already.
