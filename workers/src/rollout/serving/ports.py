"""Ports of this machine that nobody listens at."""

from __future__ import annotations

import socket


def free_port(host: str) -> int:
    """One that was free a moment ago; it is not held."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
