"""The faults: each says what a client sees and whether the API server saw the call."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from faults.filters import Expire, Lag, Take
from faults.status import build_status


class Exchange(Protocol):
    """One call in the proxy's hands."""

    async def forward(self) -> web.StreamResponse:
        """Let the API server answer the client."""

    async def perform(self) -> int:
        """Let the API server act and keep its answer from the client; returns the status."""

    async def relay(self, lines: "LineFilter") -> web.StreamResponse:
        """Forward, each line of the answer through a filter."""

    async def hang(self) -> web.StreamResponse:
        """Answer nothing until the client gives up."""

    def cut(self) -> web.StreamResponse:
        """Break the connection."""


class LineFilter(Protocol):
    """Lines of a watch in, lines out; it may wait and it may end early."""

    def __call__(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]: ...


class Fault(Protocol):
    """What happens to a call instead."""

    async def serve(self, exchange: Exchange) -> web.StreamResponse: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The API server never sees the call; the client sees a failure."""

    status: int
    reason: str = ""
    message: str = ""
    retry_after_seconds: int | None = None

    async def serve(self, exchange: Exchange) -> web.StreamResponse:
        del exchange
        headers = {}
        if self.retry_after_seconds is not None:
            headers["Retry-After"] = str(self.retry_after_seconds)
        body = build_status(self.status, self.reason, self.message)
        return web.json_response(body, status=self.status, headers=headers)


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection breaks before the API server sees the call."""

    async def serve(self, exchange: Exchange) -> web.StreamResponse:
        return exchange.cut()


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The API server acts, and the connection breaks before the client hears of it."""

    async def serve(self, exchange: Exchange) -> web.StreamResponse:
        await exchange.perform()
        return exchange.cut()


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer until the client gives up; the API server never sees the call."""

    async def serve(self, exchange: Exchange) -> web.StreamResponse:
        return await exchange.hang()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """The call goes through, late."""

    seconds: float

    async def serve(self, exchange: Exchange) -> web.StreamResponse:
        await asyncio.sleep(self.seconds)
        return await exchange.forward()


@dataclass(frozen=True, slots=True, kw_only=True)
class KillProcess:
    """A process dies at this call: before the API server sees it, or after it has acted."""

    pid: int
    performed: bool

    async def serve(self, exchange: Exchange) -> web.StreamResponse:
        if self.performed:
            await exchange.perform()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return exchange.cut()


@dataclass(frozen=True, slots=True, kw_only=True)
class CutWatch:
    """A watch breaks after some events."""

    after_events: int = 0

    async def serve(self, exchange: Exchange) -> web.StreamResponse:
        await exchange.relay(Take(events=self.after_events))
        return exchange.cut()


@dataclass(frozen=True, slots=True, kw_only=True)
class StallWatch:
    """A watch falls silent after some events, its connection open: a half-open one."""

    after_events: int = 0

    async def serve(self, exchange: Exchange) -> web.StreamResponse:
        await exchange.relay(Take(events=self.after_events))
        return await exchange.hang()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireWatch:
    """A watch ends after some events with an event that says so; 410 Gone: the client must list again."""

    after_events: int = 0
    status: int = 410

    async def serve(self, exchange: Exchange) -> web.StreamResponse:
        return await exchange.relay(Expire(events=self.after_events, status=self.status))


@dataclass(frozen=True, slots=True, kw_only=True)
class LagWatch:
    """A watch whose events arrive late: what the client knows is stale."""

    seconds: float

    async def serve(self, exchange: Exchange) -> web.StreamResponse:
        return await exchange.relay(Lag(seconds=self.seconds))
