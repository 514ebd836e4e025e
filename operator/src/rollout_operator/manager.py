"""The operator's parts and how they hang together: session, store, readers, Lease, workers, health.

Everything that watches starts at once on every replica; only the holder of the Lease works on keys.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp

from rollout_api.names import LABEL_MANAGED_BY, MANAGER_CHILDREN
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.controller.contract import Controller
from rollout_operator.controller.ending import end_tasks
from rollout_operator.controller.queue import KeyQueue
from rollout_operator.controller.worker import Workers
from rollout_operator.discovery import Surroundings
from rollout_operator.endpoint.controller import EndpointController
from rollout_operator.endpoint.optional import OptionalKinds
from rollout_operator.health import build_app, serve
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.config import Connection
from rollout_operator.kube.following import Follower
from rollout_operator.kube.informer import Informer
from rollout_operator.kube.leader import Leader
from rollout_operator.kube.opened import OpenedWatches
from rollout_operator.kube.resources import (
    NODES,
    OWN_KINDS,
    POD_MONITORS,
    PODS,
    WATCHED_CHILDREN,
    Resource,
)
from rollout_operator.kueue.resources import WORKLOADS
from rollout_operator.metrics import Metrics, watch_gauges
from rollout_operator.other_kinds import StatusController
from rollout_operator.run.apply import Applier
from rollout_operator.run.controller import FOR_QUEUE, Reconciler
from rollout_operator.run.coordinator import Calls, HttpCoordinators
from rollout_operator.run.events import Poster
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.observe import Observer
from rollout_operator.run.plan.preconditions.checks import find_runtime_fault
from rollout_operator.run.queue.asking import Asker
from rollout_operator.run.queue.keeper import Keeper
from rollout_operator.run.record_keys import RecordKeys
from rollout_operator.run.saving import Saver
from rollout_operator.run.tls import Authorities
from rollout_operator.settings import Settings
from rollout_operator.snapshot.adopt.controller import Adopter
from rollout_operator.snapshot.controller import SnapshotController
from rollout_operator.snapshot.keys import SnapshotKeys
from rollout_operator.snapshot.purge.controller import Purger
from rollout_operator.snapshot.running import Errands
from rollout_operator.sweep.controller import SweepController

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Manager:
    """One operator process."""

    settings: Settings
    connection: Connection
    session: aiohttp.ClientSession
    outer: aiohttp.ClientSession
    client: KubeClient
    store: RunStore
    queue: KeyQueue
    leader: Leader
    opened: OpenedWatches
    metrics: Metrics
    clocks: Clocks = CLOCKS
    readers: list[Informer] = field(default_factory=list)
    known: Surroundings = field(init=False)
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    record_keys: RecordKeys = field(init=False)
    snapshot_keys: SnapshotKeys = field(init=False)
    kueue: Follower = field(init=False)
    optional: OptionalKinds = field(init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Followers of optional kinds ask the store who needs them."""
        self.known = Surroundings(
            client=self.client,
            settings=self.settings,
            connection=self.connection,
            clocks=self.clocks,
        )
        self.record_keys = RecordKeys(
            client=self.client,
            namespace=lambda: self.known.platform.operator_namespace,
            clocks=self.clocks,
        )
        self.snapshot_keys = SnapshotKeys(
            client=self.client,
            namespace=lambda: self.known.platform.operator_namespace,
            clocks=self.clocks,
        )
        self.kueue = Follower(
            client=self.client,
            resource=WORKLOADS,
            build_readers=partial(self._build_optional_readers, WORKLOADS),
            wanted=lambda: bool(self.store.index.waiting(FOR_QUEUE, "")),
            appeared=self._wake_queued,
            vanished=partial(self.store.keep_only, WORKLOADS, None, set()),
        )
        self.optional = OptionalKinds(
            client=self.client,
            store=self.store,
            queue=self.queue,
            build_readers=self._build_optional_readers,
        )

    # -- life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to watch and serve; work starts when everything is known and the Lease is ours."""
        self._build_gauges()
        if self.settings.health_port:
            app = build_app(
                ages=self.ages,
                dead_seconds=self.settings.dead_seconds,
                missing=self.missing,
                metrics=self.metrics,
            )
            runner = await serve(app, self.settings.health_port)
            self._run(_until_cancelled(runner.cleanup))
        await self.known.learn_patiently()
        self.readers = list(self._build_readers())
        for reader in self.readers:
            self._run(reader.run())
        for follower in self._followers:
            self._run(follower.run())
        self._run(self.leader.run())
        self._run(self.known.follow(self._look_again))
        self._run(self._work())

    async def stop(self) -> None:
        """End all tasks and give the Lease back."""
        self.ending.set()
        await end_tasks(self._tasks)
        await self.leader.release()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A part that breaks ends the process: another one starts from what is really there."""
        if self.ending.is_set():
            return
        error = None if task.cancelled() else task.exception()
        log.error("the operator ends: a part of it has ended part=%s", task, exc_info=error)
        self.ending.set()

    @property
    def _followers(self) -> tuple[Follower, ...]:
        return (self.kueue, *self.optional.followers)

    # -- what is known ----------------------------------------------------------------------------------

    def ages(self) -> dict[str, float]:
        """Age of every kind's watch; of several (one in each namespace) the oldest."""
        ages: dict[str, float] = {}
        for path, age in self.opened.ages().items():
            plural = path.rpartition("/")[2]
            ages[plural] = max(age, ages.get(plural, 0.0))
        followed = (one for follower in self._followers for one in follower.readers)
        for reader in (*self.readers, *followed):
            plural = reader.resource.plural
            ages[plural] = max(reader.age_seconds, ages.get(plural, 0.0))
        return ages

    def missing(self) -> list[str]:
        """What readiness waits for."""
        watches = {path.rpartition("/")[2] for path in self.opened.waiting()}
        lists = {one.resource.plural for one in self.readers if not one.synced.is_set()}
        found = [one for follower in self._followers for one in follower.missing()]
        waits = sorted(watches) + sorted(lists) + found
        return waits if self.known.jwks else ["discovery", *waits]

    def _build_gauges(self) -> None:
        watch_gauges(
            self.metrics,
            queue_depth=lambda: len(self.queue),
            leading=self.leader.is_leader,
            ages=self.ages,
            reasons=self.store.index.by_ready,
        )

    # -- tasks --------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while self.missing():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.05)
        await self.leader.leading.wait()
        await self.record_keys.learn_patiently()
        for stored in list(self.store.objects()):
            self.queue.put(stored.key)
        workers = Workers(
            controllers=self._build_controllers(),
            queue=self.queue,
            leading=self.leader.leading,
            count=self._count,
            clock=self.clocks.monotonic,
        )
        await asyncio.gather(
            self._resync(),
            self.record_keys.follow(self._look_again),
            *(workers.run() for _ in range(self.settings.concurrency)),
        )

    def _wake_queued(self) -> None:
        for key in self.store.index.waiting(FOR_QUEUE, ""):
            self.queue.put(key)

    def _build_controllers(self) -> Mapping[str, Controller]:
        """One for each of our kinds."""
        observer, coordinators, calls = self._build_observer(), self._build_coordinators(), Calls()
        runs = self._build_reconciler(observer, coordinators, calls)
        snapshots = self._build_snapshots(observer, coordinators, calls, runs)
        endpoints = EndpointController(
            client=self.client,
            store=self.store,
            queue=self.queue,
            platform=lambda: self.known.platform,
            send=runs.send_status,
            poster=self._build_poster(),
            trusted=self.snapshot_keys.trusted,
            served=self.optional.served,
            clocks=self.clocks,
        )
        sweeps = SweepController(
            client=self.client,
            store=self.store,
            queue=self.queue,
            send=runs.send_status,
            poster=runs.poster,
            clocks=self.clocks,
        )
        made = {one.kind: one for one in (runs, snapshots, endpoints, sweeps)}
        return made | {
            one.kind: StatusController(
                kind=one.kind,
                store=self.store,
                queue=self.queue,
                send=runs.send_status,
                find_fault=find_runtime_fault,
                clock=self.clocks.now,
            )
            for one in OWN_KINDS
            if one.kind not in made
        }

    def _build_snapshots(
        self, observer: Observer, coordinators: HttpCoordinators, calls: Calls, runs: Reconciler
    ) -> SnapshotController:
        client, store, clocks = self.client, self.store, self.clocks
        errands = Errands(client=client, store=store, platform=lambda: self.known.platform)
        return SnapshotController(
            store=store,
            queue=self.queue,
            look=observer.look,
            coordinators=coordinators,
            signer=self.snapshot_keys.signer,
            send=runs.send_status,
            purger=Purger(
                client=client,
                store=store,
                send=runs.send_status,
                poster=runs.poster,
                errands=errands,
                clocks=clocks,
            ),
            adopter=Adopter(
                store=store,
                send=runs.send_status,
                errands=errands,
                signer=self.snapshot_keys.signer,
                clocks=clocks,
            ),
            calls=calls,
            clocks=clocks,
            count=self.metrics.count_snapshot,
        )

    def _build_coordinators(self) -> HttpCoordinators:
        return HttpCoordinators(
            client=self.client,
            session=self.outer,
            namespace=self.known.platform.operator_namespace,
            account=self.known.platform.operator_account,
            clock=self.clocks.monotonic,
        )

    def _build_reconciler(
        self, observer: Observer, coordinators: HttpCoordinators, calls: Calls
    ) -> Reconciler:
        client, clocks = self.client, self.clocks
        return Reconciler(
            client=client,
            store=self.store,
            queue=self.queue,
            observer=observer,
            applier=Applier(
                client=client,
                store=self.store,
                keys=lambda: self.known.jwks,
                keyring=lambda: self.record_keys.ring,
                authorities=Authorities(client=client, clocks=clocks),
                clock=clocks.monotonic,
            ),
            coordinators=coordinators,
            calls=calls,
            poster=self._build_poster(),
            keeper=Keeper(client=client, store=self.store, clock=clocks.now),
            record_keys=self.record_keys,
            saver=Saver(client=client, store=self.store),
            clocks=clocks,
        )

    def _build_poster(self) -> Poster:
        return Poster(client=self.client, instance=self.leader.identity, clocks=self.clocks)

    def _build_observer(self) -> Observer:
        clocks = self.clocks
        return Observer(
            client=self.client,
            store=self.store,
            platform=lambda: self.known.platform,
            asker=Asker(
                client=self.client, served=lambda: self.kueue.served, clock=clocks.monotonic
            ),
            keyring=lambda: self.record_keys.ring,
            trusted=self.snapshot_keys.trusted,
            watches_cluster=not self.settings.namespaces,
            runs_per_namespace=self.settings.runs_per_namespace,
            clocks=clocks,
        )

    def _count(self, result: str, seconds: float, waited: float) -> None:
        self.metrics.reconciles.labels(result=result).inc()
        self.metrics.duration.observe(seconds)
        self.metrics.queue_latency.observe(waited)

    async def _resync(self) -> None:
        """Look at every object again now and then, spread over the time."""
        while True:
            for stored in list(self.store.objects()):
                self.queue.put_later(stored.key, self.clocks.noise() * self.settings.resync_seconds)
            await asyncio.sleep(self.settings.resync_seconds)

    def _look_again(self) -> None:
        """Runs take new token keys, and what the platform may do, at their next look."""
        for stored in list(self.store.objects()):
            self.queue.put(stored.key)

    def _build_optional_readers(self, resource: Resource) -> Iterator[Informer]:
        for namespace in self.settings.namespaces or (None,):
            yield self._reader(resource, namespace, f"{LABEL_MANAGED_BY}={MANAGER_CHILDREN}")

    def _build_readers(self) -> Iterator[Informer]:
        children = (*WATCHED_CHILDREN, PODS)
        children += (POD_MONITORS,) if self.known.platform.pod_monitors else ()
        for namespace in self.settings.namespaces or (None,):
            for resource in children:
                yield self._reader(resource, namespace, f"{LABEL_MANAGED_BY}={MANAGER_CHILDREN}")
        if not self.settings.namespaces:
            yield self._reader(NODES, None, "")

    def _reader(self, resource: Resource, namespace: str | None, selector: str) -> Informer:
        return Informer(
            client=self.client,
            resource=resource,
            sink=self.store,
            namespace=namespace,
            selector=selector,
            timeout_seconds=self.settings.server_timeout_seconds,
            silent_seconds=self.settings.watch_seconds,
            is_echo=self.store.is_echo,
            clocks=self.clocks,
        )


async def _until_cancelled(cleanup: Callable[[], Awaitable[None]]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await cleanup()
