"""Projected tokens of service accounts: what stands in them, unverified, for people. Never their text."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path

import msgspec

TOKEN_BYTES_MAX = 64 << 10
NUM_PARTS = 3


class TokenClaims(msgspec.Struct, kw_only=True):
    """The claims that are looked at. ``exp`` in Unix seconds."""

    aud: str | list[str] = ""
    exp: float | None = None
    sub: str = ""

    @property
    def audiences(self) -> tuple[str, ...]:
        """Whom the token is for."""
        return (self.aud,) if isinstance(self.aud, str) else tuple(self.aud)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectedToken:
    """A token's file. ``error``: why it cannot be used, else ``claims`` are there."""

    error: str = ""
    claims: TokenClaims | None = None


def read_token(path: str) -> ProjectedToken:
    """A token's claims, or why there are none; hostile bytes are an error that quotes none of them."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(TOKEN_BYTES_MAX + 1)
    except OSError as error:
        return ProjectedToken(error=error.strerror or type(error).__name__)
    if len(data) > TOKEN_BYTES_MAX:
        return ProjectedToken(error=f"more than {TOKEN_BYTES_MAX:,} bytes")
    parts = data.strip().split(b".")
    if len(parts) != NUM_PARTS:
        return ProjectedToken(error="no JSON Web Token" if data.strip() else "empty")
    try:
        body = base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4))
        return ProjectedToken(claims=msgspec.json.decode(body, type=TokenClaims))
    except (binascii.Error, msgspec.MsgspecError, ValueError, RecursionError):
        return ProjectedToken(error="no JSON Web Token")
