"""How much the coordinator takes on at once; whoever comes too many is told when to come back.

A call that waits for something to happen holds no more than its place in a list, so that a thousand
idle actors never keep a heartbeat out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBounds:
    """``body_bytes`` of one call, ``bytes`` of all bodies held; ``body_seconds`` a body may take to come."""

    body_bytes: int = 256 << 20
    bytes: int = 512 << 20
    body_seconds: float = 60.0
    calls: int = 1024
    waiting: int = 8192
    calls_per_pod: int = 32
    again_seconds: int = 1


class Busy(Exception):  # noqa: N818 - an answer, not a fault
    """Not now, or not so much. ``again_seconds`` None: it would never be taken."""

    def __init__(self, status: HTTPStatus, message: str, again_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.again_seconds = again_seconds


@dataclass(slots=True, kw_only=True)
class Load:
    """What is being worked on now, and how often somebody was sent away."""

    bounds: LoadBounds = field(default_factory=LoadBounds)
    calls: int = 0
    waiting: int = 0
    bytes: int = 0
    refused: int = 0
    pods: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def admit(
        self, pod: str, size_bytes: int, bytes_max: int | None = None, *, waits: bool
    ) -> Iterator[None]:
        """Hold a place for one call, whose body may have ``bytes_max``. Raises Busy."""
        try:
            self._check(pod, size_bytes, bytes_max, waits=waits)
        except Busy:
            self.refused += 1
            raise
        self._add(pod, size_bytes, 1, waits=waits)
        try:
            yield
        finally:
            self._add(pod, -size_bytes, -1, waits=waits)

    def _check(self, pod: str, size_bytes: int, bytes_max: int | None, *, waits: bool) -> None:
        bounds = self.bounds
        most = bounds.body_bytes if bytes_max is None else min(bytes_max, bounds.body_bytes)
        if size_bytes > most:
            raise Busy(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"a body of this call has at most {most} bytes, this one has {size_bytes}:"
                " send fewer results at once",
            )
        if pod and self.pods[pod] >= bounds.calls_per_pod:
            raise self._later(
                HTTPStatus.TOO_MANY_REQUESTS, f"{self.pods[pod]} calls of {pod} are in flight"
            )
        taken, most = (self.waiting, bounds.waiting) if waits else (self.calls, bounds.calls)
        if taken >= most:
            raise self._later(HTTPStatus.SERVICE_UNAVAILABLE, f"{taken} calls are in flight")
        if size_bytes and self.bytes + size_bytes > bounds.bytes:
            raise self._later(
                HTTPStatus.SERVICE_UNAVAILABLE, f"bodies of {self.bytes} bytes are in hand"
            )

    def _later(self, status: HTTPStatus, message: str) -> Busy:
        return Busy(status, message, self.bounds.again_seconds)

    def _add(self, pod: str, size_bytes: int, number: int, *, waits: bool) -> None:
        self.bytes += size_bytes
        if waits:
            self.waiting += number
        else:
            self.calls += number
        if pod:
            self.pods[pod] += number
            self.pods += Counter()  # forget pods with nothing in flight
