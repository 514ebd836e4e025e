"""One request to the coordinator and its answer, over keep-alive HTTP; repeating it is the client's business."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from rollout.errors import CoordinatorError
from rollout.protocol.auth import Credential
from rollout.protocol.envelope import CALL_FORMAT, FORMAT, Envelope, read_number
from rollout.protocol.tls import Trust, require_safe

IDLE_CONNECTIONS_MAX = 8
"""Connections kept open between calls."""

AGAIN_SECONDS_MAX = 30.0
"""The longest pause that a busy coordinator may ask for."""

BOOT, POSITION = "X-Rollout-Boot", "X-Rollout-Position"
"""Headers of an answer: which process gave it, and where its ledger stands."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a transport brings back."""

    status: int
    """HTTP's."""
    body: bytes
    """Undecoded."""
    boot: str = ""
    """Names the coordinator's process: another one means that it was replaced; empty: no coordinator answered."""
    position: int = 0
    """Where its ledger stands; grows over all lives of the coordinator, else commits were lost."""
    format: int = CALL_FORMAT
    """How the coordinator's calls are written; meaningful where ``boot`` is there."""
    again_seconds: float | None = None
    """When a refused call may be repeated; None: as the caller sees fit, if at all."""


class Unreachable(Exception):  # noqa: N818 - a state, always retried and then wrapped
    """The coordinator did not answer this attempt."""


class Transport(Protocol):
    """One request, one answer. Raises Unreachable when there is none."""

    def send(
        self, method: str, path: str, body: bytes, timeout_seconds: float, envelope: Envelope
    ) -> Answer:
        """Send once; no retries here."""
        ...

    def close(self) -> None:
        """Free connections."""
        ...


class HttpTransport:
    """Keep-alive HTTP to one coordinator, a connection for each call in flight.

    The standard library's client: a step makes four calls, and httpx spends 0.8 ms more on each.
    """

    def __init__(self, url: str, token: Credential, trust: Trust | None = None) -> None:
        require_safe(url)
        parts = urlsplit(url)
        if parts.scheme == "https" and trust is None:
            raise CoordinatorError(f"{url}: layout.caFile must say what it is known by")
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port
        self._trust = trust if parts.scheme == "https" else None
        self._token = token
        self._idle: list[HTTPConnection] = []

    def send(
        self, method: str, path: str, body: bytes, timeout_seconds: float, envelope: Envelope
    ) -> Answer:
        """Send once. Raises Unreachable on any failure of the connection."""
        headers = {
            "Authorization": f"Bearer {self._token()}",
            "Content-Type": "application/msgpack",
            **envelope.headers(),
        }
        connection = self._take(timeout_seconds)
        try:
            connection.request(method, path, body=body, headers=headers)
            got = connection.getresponse()
            content = got.read()
        except (OSError, HTTPException) as error:
            connection.close()
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        self._give_back(connection)
        return Answer(
            status=got.status,
            body=content,
            boot=got.headers.get(BOOT, ""),
            position=int(got.headers.get(POSITION, "0")),
            format=read_number(got.headers.get(FORMAT, "1"), 0),
            again_seconds=_again_seconds(got.headers.get("Retry-After", "")),
        )

    def _take(self, timeout_seconds: float) -> HTTPConnection:
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._connect(timeout_seconds)
        connection.timeout = timeout_seconds
        if connection.sock is not None:
            connection.sock.settimeout(timeout_seconds)
        return connection

    def _connect(self, timeout_seconds: float) -> HTTPConnection:
        if self._trust is None:
            return HTTPConnection(self._host, self._port, timeout=timeout_seconds)
        context = self._trust.context()
        return HTTPSConnection(self._host, self._port, timeout=timeout_seconds, context=context)

    def _give_back(self, connection: HTTPConnection) -> None:
        if len(self._idle) < IDLE_CONNECTIONS_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().close()


def _again_seconds(said: str) -> float | None:
    return min(float(said), AGAIN_SECONDS_MAX) if said.isdigit() else None
