"""Who may come in: whoever opened the link that was printed, in one browser, under loopback's names.

A page of another site can reach a port of this machine, by its address or by a name that it points here. So a
request needs the cookie that the link gave, a ``Host`` of ours, and to change something an ``Origin`` of ours too.
Pure but for the randomness of keys.
"""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from collections.abc import Mapping

SESSIONS_MAX = 16
"""Browsers at a time; one more ends the oldest."""
KEY_BYTES = 24

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer. The referrer stays, for a browser that sends none names no origin of a form either."""


class Door:
    """The keys and sessions of one console on ``port``. A key opens one browser, then there is another one."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = f"rollout-{port}"  # browsers share cookies between the ports of a host
        self._hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        self._sessions: deque[str] = deque(maxlen=SESSIONS_MAX)
        self._key = secrets.token_urlsafe(KEY_BYTES)

    @property
    def link(self) -> str:
        """The address that opens the console once."""
        return f"http://127.0.0.1:{self.port}/?key={self._key}"

    def open_with(self, key: str) -> str | None:
        """A session for the right key, which is spent by it; None for another."""
        if not _equal(key, self._key):
            return None
        self._key = secrets.token_urlsafe(KEY_BYTES)
        session = secrets.token_urlsafe(KEY_BYTES)
        self._sessions.append(session)
        return session

    def knows(self, session: str) -> bool:
        """Whether this cookie's value is a session's."""
        return any(_equal(session, one) for one in self._sessions)

    def is_ours(self, host: str) -> bool:
        """Whether a ``Host`` header names this console: a name that somebody points here does not."""
        return host in self._hosts

    def comes_from_here(self, origin: str) -> bool:
        """Whether an ``Origin`` header names this console."""
        return origin.removeprefix("http://") in self._hosts and origin.startswith("http://")


def _equal(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(), known.encode())
