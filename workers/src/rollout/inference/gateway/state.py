"""What one gateway process knows: settings, keys, versions, open requests; and the duties that keep it so.

The table of versions and the file of keys are looked at twice a second and taken as a whole when they have changed; one
that is broken changes nothing and is told in the log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rollout.inference.gateway.forwarding import ServersClient
from rollout.inference.gateway.keys import ApiKey, KeyFile, KeyRing
from rollout.inference.gateway.live import LiveBounds, LiveRequests
from rollout.inference.gateway.metrics import GatewayMetrics
from rollout.inference.gateway.pools import HEALTH_AGAIN_SECONDS, VersionPool, find_pool
from rollout.inference.gateway.request_log import RequestLog
from rollout.inference.gateway.rules.canary import NOBODY, read_canary
from rollout.inference.gateway.rules.limits import KeyBudgets, allows
from rollout.inference.gateway.rules.queueing import QueueBounds
from rollout.inference.gateway.rules.refusals import ApiRefusal
from rollout.inference.gateway.table import EndpointTable, ServedVersion, read_table
from rollout.inference.gateway.watching import FileWatch

if TYPE_CHECKING:
    from rollout.inference.gateway.rules.asks import Ask
    from rollout.inference.gateway.traces import RequestSpan, RequestTraces

log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.5
NAMES_SHOWN_MAX = 20


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gateway listens, what it reads, and its bounds. ``log``: the folder of the request log; empty: none.

    ``admin`` is a Unix socket for whoever started it. ``is_open``: no key is asked for. ``leave_seconds``: a gateway that is
    told to end goes on taking requests for so long, each on a connection that it then closes, until nobody sends it any.
    ``canary``: the file that says which sessions a candidate's servers answer (``read_canary``); empty: none.
    ``tls``: folder of ``tls.crt`` and ``tls.key``, with which it listens at ``tls_port`` too; empty: it does not. Both are taken up anew when they change.
    ``files``: folder of uploaded files and batches; empty: it keeps none. ``traces``: where spans are sent, whole (``parse_collector``); empty: nowhere.
    """

    host: str
    port: int
    table: str
    keys: str
    admin: str
    queue_requests_max: int = 512
    queue_bytes_max: int = 64 << 20
    queue_seconds: float = 60.0
    request_seconds: float = 600.0
    idle_seconds: float = 120.0
    write_seconds: float = 30.0
    drain_seconds: float = 30.0
    body_bytes_max: int = 8 << 20
    body_seconds: float = 30.0
    bodies_bytes_max: int = 512 << 20
    live_max: int = 16_384
    log: str = ""
    log_bodies: bool = False
    log_days: int = 30
    traces: str = ""
    files: str = ""
    traces_share: float = 1.0
    is_open: bool = False
    leave_seconds: float = 0.0
    canary: str = ""
    tls_port: int = 0
    tls: str = ""


class GatewayState:
    """The state of one gateway. Made in a running loop."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.metrics = GatewayMetrics()
        self.budgets = KeyBudgets()
        self.live = LiveRequests(
            LiveBounds(
                request_seconds=settings.request_seconds,
                idle_seconds=settings.idle_seconds,
                write_seconds=settings.write_seconds,
            )
        )
        self.log = _open_log(settings, self.metrics)
        self.traces = _open_traces(settings, self.metrics)
        self.leaving = False
        self.draining = False
        self.bodies_bytes = 0
        self.table = EndpointTable()
        self.pools: list[VersionPool] = []
        self._bounds = QueueBounds(
            requests_max=settings.queue_requests_max, bytes_max=settings.queue_bytes_max
        )
        self._key_file = KeyFile(Path(settings.keys), is_open=settings.is_open)
        self.ring: KeyRing = self._key_file.read()
        self._table_watch = FileWatch(Path(settings.table), read_table)
        self.canary, self.others = NOBODY, ServersClient()
        self._canary_watch = FileWatch(Path(settings.canary), read_canary)
        self._key_watch = FileWatch(self._key_file.path, lambda _: self._key_file.read())

    @property
    def ready(self) -> bool:
        """Whether requests are taken and some engine answers."""
        return not self.leaving and any(one.ready and not one.retired for one in self.pools)

    def resolve(self, name: str, key: ApiKey) -> VersionPool:
        """The pool that a client's ``model`` means now. Raises ApiRefusal, which says what there is for this key."""
        version = self.table.find(name)
        pool = None if version is None else find_pool(self.pools, version.name)
        if pool is None or not allows(key, name):
            shown = ", ".join(
                [one for one in self.table.names() if allows(key, one)][:NAMES_SHOWN_MAX]
            )
            message = f"The model {name!r} does not exist or you do not have access to it; there are: {shown}"
            raise ApiRefusal(404, message, param="model", code="model_not_found", reason="no_model")
        return pool

    def begin_span(
        self, ask: Ask, version: ServedVersion, traceparent: str, began_at: float
    ) -> RequestSpan | None:
        """The span of a request, where requests are traced."""
        if self.traces is None:
            return None
        return self.traces.begin(ask, version, traceparent, began_at)

    async def refresh(self) -> None:
        """Take what has changed in the two files."""
        ring = self._key_watch.changed()
        if ring is not None:
            self.ring = ring
        table = self._table_watch.changed()
        if table is not None:
            self._take(table)
        if self.settings.canary and (canary := self._canary_watch.changed()) is not None:
            log.info("canary url=%s percent=%d", canary.url, canary.percent)
            self.canary = canary
        self._close_retired()

    async def keep(self) -> None:
        """The duty of files, deadlines and gauges: for as long as the process lives."""
        while True:
            await self.refresh()
            await self.live.sweep(time.monotonic(), self.ring.keeps)
            self.budgets.forget_idle(time.monotonic())
            for pool in self.pools:
                pool.measure()
            await asyncio.sleep(SWEEP_SECONDS)

    async def watch_health(self) -> None:
        """The duty of engines' health."""
        while True:
            await asyncio.gather(*(pool.watch_health() for pool in self.pools))
            await asyncio.sleep(HEALTH_AGAIN_SECONDS)

    async def drain(self) -> None:
        """Have nobody send more, take no more, let open requests end, and cut what is left when the time is up."""
        self.leaving = True
        await asyncio.sleep(self.settings.leave_seconds)
        self.draining = True
        deadline = time.monotonic() + self.settings.drain_seconds
        while len(self.live) and time.monotonic() < deadline:  # noqa: ASYNC110 - bounded, and only at the end
            await asyncio.sleep(0.05)
        if len(self.live):
            log.warning("cutting requests at the end of the drain open=%d", len(self.live))
            self.live.abort_all(
                ApiRefusal(503, "the server ends", code="draining", reason="draining")
            )
            await asyncio.sleep(0.5)

    async def close(self) -> None:
        """Close the clients of all engines."""
        for pool in self.pools:
            pool.close()
        await self.others.close()
        if self.log is not None:
            await asyncio.to_thread(self.log.close)
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)

    def _take(self, table: EndpointTable) -> None:
        for version in table.versions:
            known = find_pool([one for one in self.pools if not one.retired], version.name)
            if known is not None and known.serves(version):
                if known.version != version:
                    known.take(version)
                continue
            if known is not None:
                known.retired = True
            self.pools.insert(0, VersionPool(version, self._bounds, self.metrics))
            log.info("serving version=%s digest=%s", version.name, version.digest)
        wanted = {one.name for one in table.versions}
        for pool in self.pools:
            pool.retired = pool.retired or pool.version.name not in wanted
        self.table = table

    def _close_retired(self) -> None:
        open_names = {live.version for live in self.live}
        for pool in self.pools:
            pool.forget_left()
        for pool in [one for one in self.pools if one.retired]:
            if pool.open_requests or pool.version.name in open_names:
                continue
            self.pools.remove(pool)
            pool.close()
            if find_pool(self.pools, pool.version.name) is None:
                self.metrics.forget_version(pool.version.name)
            log.info("retired version=%s", pool.version.name)


def _open_log(settings: GatewaySettings, metrics: GatewayMetrics) -> RequestLog | None:
    if not settings.log:
        return None
    return RequestLog(
        Path(settings.log),
        bodies=settings.log_bodies,
        days=settings.log_days,
        dropped=metrics.log_dropped.inc,
    )


def _open_traces(settings: GatewaySettings, metrics: GatewayMetrics) -> RequestTraces | None:
    """Who is not traced needs no OpenTelemetry. Raises SpecError where it is not installed."""
    if not settings.traces:
        return None
    from rollout.inference.gateway.traces import RequestTraces

    return RequestTraces(
        settings.traces,
        settings.traces_share,
        host=settings.host,
        port=settings.port,
        lost=metrics.spans_lost.inc,
    )
