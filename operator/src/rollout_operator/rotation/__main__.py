"""Composition root: settings -> client -> one look after another, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Mapping
from datetime import UTC, datetime

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest

from rollout_api.logs import start_logging
from rollout_operator.certs.rotate import Target, expiry, rotate
from rollout_operator.errors import KubeError
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.config import find_connection, open_session

log = logging.getLogger(__name__)
LOOK_SECONDS = 60.0
"""A bundle that somebody wiped refuses runs for no longer than this."""
RETRY_SECONDS = 5.0


def parse_target(environment: Mapping[str, str]) -> Target:
    """Read ``ROLLOUT_OPERATOR_NAMESPACE``, ``ROLLOUT_WEBHOOK_{SECRET,CONFIGURATION,NAMES}``.

    Raises ValueError naming the variable that is missing.
    """
    names = (
        "ROLLOUT_OPERATOR_NAMESPACE",
        "ROLLOUT_WEBHOOK_SECRET",
        "ROLLOUT_WEBHOOK_CONFIGURATION",
        "ROLLOUT_WEBHOOK_NAMES",
    )
    values = [environment.get(name, "") for name in names]
    if missing := [name for name, value in zip(names, values, strict=True) if not value]:
        raise ValueError(f"{', '.join(missing)} must be set; the chart does it")
    namespace, secret, configuration, dns_names = values
    return Target(
        namespace=namespace,
        secret=secret,
        configuration=configuration,
        dns_names=tuple(name.strip() for name in dns_names.split(",") if name.strip()),
    )


class Health:
    """Ready after the first look that went well; ``/metrics`` says when the certificate ends."""

    def __init__(self) -> None:
        self.has_looked = False
        self.registry = CollectorRegistry()
        self.expiry = Gauge(
            "rollout_webhook_certificate_expiry_seconds",
            "When the webhook's certificate ends, as a Unix time.",
            registry=self.registry,
        )

    async def serve(self, port: int) -> web.AppRunner:
        """Open /healthz, /readyz, /metrics on every address of the pod."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", self._live),
                web.get("/readyz", self._ready),
                web.get("/metrics", self._metrics),
            ]
        )
        runner = web.AppRunner(app, handle_signals=False)
        await runner.setup()
        await web.TCPSite(runner, None, port).start()
        return runner

    async def _live(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _ready(self, _: web.Request) -> web.Response:
        text = "ok" if self.has_looked else "no look has gone well yet"
        return web.Response(status=200 if self.has_looked else 503, text=text)

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def keep(client: KubeClient, target: Target, health: Health, stop: asyncio.Event) -> None:
    """Look, wait, look again; a look that failed is repeated soon."""
    while not stop.is_set():
        wait = LOOK_SECONDS
        try:
            health.expiry.set(expiry(await rotate(client, target, datetime.now(UTC))).timestamp())
            health.has_looked = True
        except KubeError as error:
            log.warning("look failed error=%s", error)
            wait = RETRY_SECONDS
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait)


async def run(environment: Mapping[str, str]) -> None:
    """Until SIGTERM or SIGINT."""
    target, connection, stop = (
        parse_target(environment),
        find_connection(environment),
        asyncio.Event(),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    health = Health()
    runner = await health.serve(int(environment.get("ROLLOUT_HEALTH_PORT", "8082")))
    try:
        async with open_session(connection) as session:
            await keep(KubeClient(session, connection.server), target, health, stop)
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    start_logging(os.environ)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    asyncio.run(run(os.environ))
