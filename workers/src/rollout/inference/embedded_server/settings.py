"""What an embedded engine is started with: plain data, for those who load no tensor library."""

from __future__ import annotations

import msgspec


class EmbeddedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One embedded engine: a model folder, the socket it answers at, what it calls itself, and its bounds."""

    model: str
    socket: str
    name: str
    threads: int = 1
    samples_max: int = 16
    orders_max: int = 64
