"""Which variables hold credentials, by their names: refused in plain text, masked in what is kept of a process."""

from __future__ import annotations

_ENDINGS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "DSN", "CREDENTIAL", "CREDENTIALS")


def names_credential(name: str) -> bool:
    """Whether a variable of this name is taken for a credential."""
    return name.upper().rstrip("_0123456789").endswith(_ENDINGS)
