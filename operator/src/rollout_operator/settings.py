"""Settings of the operator process, read from the environment once and then passed as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the composition root needs.

    ``namespaces`` empty means the whole cluster. ``health_port`` serves liveness on all interfaces
    of the pod; 0 turns it off.
    """

    namespaces: tuple[str, ...] = ()
    health_port: int = 8080
    server_timeout_seconds: int = 300
    connect_timeout_seconds: int = 10


def parse_settings(environment: Mapping[str, str]) -> Settings:
    """Read ``ROLLOUT_NAMESPACES`` (comma separated) and ``ROLLOUT_HEALTH_PORT``.

    Raises ValueError naming the variable, the value and what was expected.
    """
    names = environment.get("ROLLOUT_NAMESPACES", "")
    port = environment.get("ROLLOUT_HEALTH_PORT", "8080")
    if not port.isdigit() or int(port) > 65535:
        raise ValueError(f"ROLLOUT_HEALTH_PORT is {port!r}; expected a port from 0 to 65535")
    return Settings(
        namespaces=tuple(name.strip() for name in names.split(",") if name.strip()),
        health_port=int(port),
    )
