"""Requests to an engine over its socket, or to servers at an address: one connection each, whose events are handed on as they come, without a task for each.

A general HTTP client wakes a task for every piece of an answer, which is most of what a streamed event cost a gateway; here
the bytes go from the socket's callback to whoever takes them. What is parsed is HTTP's framing, by httptools. A connection is not
used again: engines close idle ones when they like, and a request that meets that is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Self, cast

import httptools

CONNECT_SECONDS_MAX = 2.0
HTTP = "http://"
"""How the address of servers begins that are elsewhere: ``http://host:port``."""
ANSWER_BYTES_MAX = 64 << 20
LOOPBACK = "127.0.0.1:"
"""How the address of an engine begins that knows no Unix sockets."""


class EngineLost(Exception):  # noqa: N818 - a state
    """An engine did not answer, or not to the end, or what is no answer."""


class NotReached(EngineLost):
    """It has not been asked: nobody took the connection."""


class AnswerTooLarge(Exception):  # noqa: N818 - a state
    """More than ANSWER_BYTES_MAX: no fault of the engine's."""


class EngineAnswer(asyncio.Protocol):
    """One answer on its way. ``status`` is there from the head on; ``lags``: whoever takes its bytes has too many.

    Every wait raises EngineLost where the engine is, and ``failed`` says why.
    """

    def __init__(self) -> None:
        self.status = 0
        self.ended = False
        self.lags = False
        self.failed: Exception | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._take: Callable[[bytes], bool] | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None

    @classmethod
    async def ask(
        cls, socket: str, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Self:
        """Connect to ``socket``, a path or ``127.0.0.1:PORT``, and send; the answer's head comes later. Raises EngineLost."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                transport, answer = await cls._connect(socket)
        except (OSError, TimeoutError) as error:
            raise EngineLost(str(error)) from error
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\nHost: engine\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
        transport.write(head.encode() + body)
        return answer

    @classmethod
    async def _connect(cls, socket: str) -> tuple[asyncio.Transport, Self]:
        loop = asyncio.get_running_loop()
        if not socket.startswith((LOOPBACK, HTTP)):
            return await loop.create_unix_connection(cls, socket)
        host, _, port = socket.removeprefix(HTTP).rpartition(":")
        return await loop.create_connection(cls, host, int(port))

    async def head(self) -> int:
        """The status, when it is there."""
        while not self.status:
            await self._wait()
        return self.status

    async def read(self) -> bytes:
        """All of it. Raises AnswerTooLarge, too."""
        while not self.ended:
            await self._wait()
        return b"".join(self._parts)

    def hand_on(self, take: Callable[[bytes], bool]) -> None:
        """From now on each piece goes to ``take``, which says whether it may have more; where not, ``lags`` until ``resume``."""
        self._take = take
        self._flush()

    async def moved(self) -> None:
        """Until it has ended, or lags."""
        while not (self.ended or self.lags):
            await self._wait()

    def resume(self) -> None:
        """Its bytes may come again."""
        self.lags = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def fail(self, why: Exception) -> None:
        """It will not end; idempotent. Whoever waits for it is told."""
        if not self.ended and self.failed is None:
            self.failed = why
        self.close()
        self._wake()

    def close(self) -> None:
        """Cut the connection: an engine that is not done hears that nobody waits."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open; the loop calls this, and the next two."""
        self._transport = cast(
            "asyncio.Transport", transport
        )  # uvloop's are of no class of asyncio's

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        try:
            self._parser.feed_data(data)
            if self._take is not None and self._parts:
                self._flush()
        except httptools.HttpParserError as error:
            cause = error.__context__
            self.fail(cause if isinstance(cause, AnswerTooLarge) else error)

    def connection_lost(self, exc: Exception | None) -> None:
        """None will come any more."""
        self.fail(exc or EngineLost("the engine closed the connection"))

    def on_headers_complete(self) -> None:
        """The head is whole; the parser calls this, and the next two."""
        self.status = self._parser.get_status_code()
        self._wake()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._parts.append(body)
        if self._take is None:
            self._size += len(body)
            if self._size > ANSWER_BYTES_MAX:
                raise AnswerTooLarge(f"an answer of more than {ANSWER_BYTES_MAX} bytes")

    def on_message_complete(self) -> None:
        """The answer is whole."""
        self.ended = True
        self._wake()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if data and self._take is not None and not self._take(data) and not self.ended:
            self.lags = True
            if self._transport is not None:
                self._transport.pause_reading()
            self._wake()

    async def _wait(self) -> None:
        if self.failed is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if isinstance(self.failed, AnswerTooLarge):
            raise self.failed
        if self.failed is not None:
            raise EngineLost(str(self.failed)) from self.failed

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
