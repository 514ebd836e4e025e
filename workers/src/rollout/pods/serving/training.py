"""What stands beside a training service in a pod: the door of operator and kubelet, its progress, its clients' keys.

The door is that of a run's coordinator, of whose place the pod is: the run's certificate, tokens of the operator's account,
and an answer at ``/healthz`` only once the book has been replayed. It takes live settings, of which none is a service's, and
refuses snapshots by name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from rollout.common.duties import Duty
from rollout.coordinator.server.callers import Callers, Unauthenticated
from rollout.coordinator.status.kubernetes import StatusWriter, Unwritten
from rollout.coordinator.status.progress import stamp
from rollout.errors import SpecError
from rollout.pods.serving.keys import MountedKeys
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.tls import Certificate
from rollout_api.v1alpha1.run_status import Progress, ServiceCounts
from rollout_api.worker import WorkerOrder

log = logging.getLogger(__name__)

HEALTH_PATH = "/healthz"
KEYS_SECONDS = 1.0
AGAIN_SECONDS = 10.0
"""After a write of progress that was refused."""
BODY_BYTES_MAX = 1 << 20
NO_SNAPSHOTS = "a training service takes no snapshots: its book is on the run's volume"

Counts = Callable[[], tuple[int, int]]
"""Models, and their calls that are answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDoor:
    """Where the operator and the kubelet reach the pod of a service."""

    host: str
    port: int
    callers: Callers
    certificate: Certificate | None

    async def serve(self) -> None:
        """Answer for ever. Raises OSError where the address is taken."""
        runner = web.AppRunner(self.build(), access_log=None, handle_signals=False)
        await runner.setup()
        tls = None if self.certificate is None else self.certificate.context
        try:
            site = web.TCPSite(runner, self.host, self.port, reuse_address=True, ssl_context=tls)
            await site.start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    def build(self) -> web.Application:
        """The application."""
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_get(HEALTH_PATH, _health)
        app.router.add_post(routes.SETTINGS.path, self._settings)
        app.router.add_post(routes.STOP.path, self._stop)
        app.router.add_post(routes.SNAPSHOT.path, self._snapshot)
        return app

    async def _settings(self, request: web.Request) -> web.Response:
        self._check(request)
        try:
            wanted = msgspec.json.decode(await request.read(), type=m.Settings)
        except msgspec.MsgspecError as error:
            raise web.HTTPBadRequest(text=f"these are no settings: {error}") from error
        taken = m.SettingsTaken(generation=wanted.generation)
        return web.Response(body=msgspec.json.encode(taken), content_type="application/json")

    async def _stop(self, request: web.Request) -> web.Response:
        """Nothing to save: every answer is in the book before it is given."""
        self._check(request)
        return web.Response(body=b"{}", content_type="application/json")

    async def _snapshot(self, request: web.Request) -> web.Response:
        self._check(request)
        raise web.HTTPConflict(text=NO_SNAPSHOTS)

    def _check(self, request: web.Request) -> None:
        try:
            caller = self.callers.identify(request.headers.get("Authorization", ""))
        except Unauthenticated as error:
            raise web.HTTPUnauthorized(text=str(error)) from error
        if caller.role != "operator":
            raise web.HTTPForbidden(text="this is the operator's")


async def _health(request: web.Request) -> web.Response:
    del request
    return web.Response(text="ok")


def client_url(order: WorkerOrder) -> str:
    """Where clients inside the cluster find the service. Raises SpecError for an order of none."""
    port = order.layout.service_port
    if port is None:
        raise SpecError("layout.servicePort is not set: the order is not of a service")
    host = (urlsplit(order.layout.coordinator_url).hostname or "").partition(".")[2]
    return f"http://{host}:{port}"


async def tell_progress(writer: StatusWriter, order: WorkerOrder, counts: Counts) -> None:
    """Write what the service has into ``status.progress``: at once, then when it has changed, at the order's interval."""
    assert order.progress is not None
    written: tuple[int, int] | None = None
    while True:
        seen, seconds = counts(), order.progress.every_seconds
        if seen != written:
            try:
                await writer.write(stamp(describe(order, seen)))
                written = seen
            except Unwritten as error:
                log.warning("progress is not written, trying again reason=%s", error)
                seconds = AGAIN_SECONDS
        await asyncio.sleep(seconds)


def describe(order: WorkerOrder, counts: tuple[int, int]) -> Progress:
    """The service's word of this run attempt."""
    models, calls = counts
    service = ServiceCounts(url=client_url(order), models=models, calls=calls)
    return Progress(attempt=order.attempt, serve=service)


def refresh_keys(mounted: MountedKeys) -> Duty:
    """Take keys that the kubelet has replaced, within a second of it."""

    async def refresh() -> None:
        while True:
            await asyncio.to_thread(mounted.refresh, time.time())
            await asyncio.sleep(KEYS_SECONDS)

    return refresh
