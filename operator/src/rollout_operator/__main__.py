"""Composition root: settings -> queue -> handlers -> kopf.

A skeleton: it watches RolloutRuns and keeps their keys; nothing reconciles them yet.
"""

from __future__ import annotations

import asyncio
import os

import kopf

from rollout_operator.handlers import register
from rollout_operator.keys import KeyQueue
from rollout_operator.settings import parse_settings


def main() -> None:
    """Run until SIGTERM."""
    settings = parse_settings(os.environ)
    registry = kopf.OperatorRegistry()
    register(registry, KeyQueue(), settings)
    asyncio.run(
        kopf.operator(
            registry=registry,
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            standalone=True,
            liveness_endpoint=(
                f"http://0.0.0.0:{settings.health_port}/healthz" if settings.health_port else None
            ),
        )
    )


if __name__ == "__main__":
    main()
