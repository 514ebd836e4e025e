"""Settings of the webhook's process, read from the environment once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollout_operator.webhook.server import Ports
from rollout_operator.webhook.tls import KeyPair

FOLDER = "/etc/rollout/webhook"
HOST = "0.0.0.0"  # noqa: S104 - a pod's own address; a NetworkPolicy says who may come
PORT_MAX = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Where it listens, and with which certificate."""

    ports: Ports
    files: KeyPair


def parse_settings(environment: Mapping[str, str]) -> WebhookSettings:
    """Read ``ROLLOUT_WEBHOOK_HOST``, ``_PORT``, ``_CERTIFICATES`` (a folder) and ``ROLLOUT_HEALTH_PORT``.

    Raises ValueError naming the variable, the value and what was expected.
    """
    folder = Path(environment.get("ROLLOUT_WEBHOOK_CERTIFICATES", FOLDER))
    ports = Ports(
        host=environment.get("ROLLOUT_WEBHOOK_HOST", HOST),
        review=_port(environment, "ROLLOUT_WEBHOOK_PORT", 9443),
        health=_port(environment, "ROLLOUT_HEALTH_PORT", 8081),
    )
    return WebhookSettings(
        ports=ports, files=KeyPair(certificate=folder / "tls.crt", key=folder / "tls.key")
    )


def _port(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not text.isdigit() or int(text) > PORT_MAX:
        raise ValueError(f"{name} is {text!r}; expected a port from 0 to {PORT_MAX}")
    return int(text)
