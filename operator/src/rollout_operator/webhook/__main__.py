"""Composition root: settings -> certificate -> servers -> kopf. Runs until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os

import kopf

from rollout_api.logs import start_logging
from rollout_operator.kube.config import find_connection, open_session
from rollout_operator.webhook.handlers import register
from rollout_operator.webhook.server import WebhookServer
from rollout_operator.webhook.settings import WebhookSettings, parse_settings
from rollout_operator.webhook.tls import Certificate


async def run(settings: WebhookSettings) -> None:
    """Answer reviews until cancelled."""
    server = WebhookServer(Certificate(settings.files), settings.ports)
    connection, registry = find_connection(os.environ), kopf.OperatorRegistry()
    health = await server.serve_health()
    try:
        async with open_session(connection) as session:
            register(registry, server, session, connection.server)
            await kopf.operator(registry=registry, clusterwide=True, standalone=True)
    finally:
        await health.cleanup()


def main() -> None:
    """Entry point of the webhook's Deployment."""
    start_logging(os.environ)
    logging.getLogger("kopf.objects").setLevel(logging.CRITICAL)  # refusals are answers
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    asyncio.run(run(parse_settings(os.environ)))


if __name__ == "__main__":
    main()
