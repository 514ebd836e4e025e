"""What an embedded engine is started with: plain data, for those who load no tensor library."""

from __future__ import annotations

from typing import Literal

import msgspec


class EmbeddedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One embedded engine: a model folder, the socket it answers at, what it calls itself, what it does, and its bounds."""

    model: str
    socket: str
    name: str
    threads: int = 1
    task: Literal["generate", "embed", "score"] = "generate"
    samples_max: int = 16
    orders_max: int = 64
