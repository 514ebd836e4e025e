"""``ssh://[user@]host[:port]``, read into what the ssh client is told. Refuses all that could be taken for an option."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from rollout.errors import SpecError

FORM = "ssh://[user@]host[:port]"
_HOST = re.compile(r"[A-Za-z0-9_:%.][A-Za-z0-9_:%.-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.$-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAddress:
    """Where a run is sent. ``user`` and ``port`` None: as the ssh client's own configuration says."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        """As a person writes it."""
        user = "" if self.user is None else f"{self.user}@"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ssh://{user}{host}" + ("" if self.port is None else f":{self.port}")


def parse_address(text: str) -> HostAddress:
    """The address of ``--on``. Raises SpecError."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise SpecError(f"--on {text}: expected {FORM}: {error}") from error
    if parts.password is not None:
        raise SpecError(
            f"--on: expected {FORM} without a password: others see the words of a command; use a key or ssh-agent"
        )
    rest = parts.path.strip("/") or parts.query or parts.fragment
    host, user = parts.hostname or "", parts.username
    if parts.scheme != "ssh" or rest or not _HOST.fullmatch(host):
        raise SpecError(f"--on {text}: expected {FORM}")
    if user is not None and not _USER.fullmatch(user):
        raise SpecError(f"--on {text}: expected {FORM}; {user!r} is no user's name")
    if "@" in parts.netloc and not user:
        raise SpecError(f"--on {text}: expected {FORM}; the user's name is empty")
    return HostAddress(host=host, user=user, port=port)
