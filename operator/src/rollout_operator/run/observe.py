"""Gathers everything that planning needs to know about one run. Reads; never writes.

What is asked of the API server (Secrets, StorageClasses) is asked only before an attempt starts.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rollout_api.conditions import Reason
from rollout_api.presets import Filled
from rollout_api.v1alpha1.pods.allowed import Allowed
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.run_status import RunStatus
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.worker import RestoreOrder
from rollout_operator.cache.children import Child, Node
from rollout_operator.cache.objects import Stored
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.controller.queue import Key
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import CONFIG_MAPS
from rollout_operator.run.attempt import read_record
from rollout_operator.run.cluster import Cluster
from rollout_operator.run.index.made import find_made
from rollout_operator.run.index.references import SNAPSHOT, restored_name
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.index.upstreams import find_upstreams
from rollout_operator.run.plan.attempts import current_attempt, find_record, records
from rollout_operator.run.plan.model import REST_SECONDS, Blocked, Observed
from rollout_operator.run.plan.preconditions.allowed import (
    check_allowed,
)
from rollout_operator.run.plan.preconditions.checks import (
    check_form,
    check_platform,
    filled_by_presets,
    queue_of,
    resolve_spec,
)
from rollout_operator.run.plan.preconditions.moved import check_moved
from rollout_operator.run.plan.preconditions.restoring import (
    LOST,
    RestoreSource,
    check_restore,
    find_source,
    order_restore,
    source_at,
    told_before,
)
from rollout_operator.run.plan.preconditions.storage import (
    access_mode,
    check_storage,
    needs_volume,
    wanted_class,
)
from rollout_operator.run.plan.preconditions.upstreams import (
    Readable,
    Upstream,
    check_upstreams,
    keep_own,
    with_uris,
)
from rollout_operator.run.plan.settled import settled_digest
from rollout_operator.run.queue.asking import Asker
from rollout_operator.run.render.inputs import Inputs, Platform
from rollout_operator.run.render.volumes import claim_name
from rollout_operator.run.surroundings import (
    Version,
    find_missing,
    find_runtime,
    find_unserved_labels,
)
from rollout_operator.signing import ORDER_FILE, RECORD_FORMAT, Keyring

SPECS_MAX = 256
PROGRESS_SECONDS_MIN = 10.0
RUNS_PER_SECOND = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A spec as it will run on its runtime, or what is wrong with it: nothing but watched objects decide that."""

    runtime: RuntimeSpec
    settled: str = ""
    filled: tuple[Filled, ...] = ()
    spec: RolloutRunSpec | None
    gate: Blocked | None


async def nobody() -> tuple[str, ...]:
    """No signer of snapshots is believed."""
    return ()


@dataclass(slots=True, kw_only=True)
class Observer:
    """Puts together what the store knows with what has to be asked. ``trusted``: whose snapshots a run may begin with."""

    client: KubeClient
    store: RunStore
    platform: Callable[[], Platform]
    asker: Asker
    keyring: Callable[[], Keyring]
    trusted: Callable[[], Awaitable[tuple[str, ...]]] = nobody
    watches_cluster: bool = True
    runs_per_namespace: int = 0
    clocks: Clocks = CLOCKS
    unreachable: dict[str, float] = field(default_factory=dict)
    _cluster: Cluster = field(init=False)
    _specs: OrderedDict[tuple[str, int, Version, bool], Looked] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        """Questions about the cluster have a memory of their own."""
        self._cluster = Cluster(
            client=self.client, allowed=self.watches_cluster, clock=self.clocks.monotonic
        )

    def leave_alone(self, uid: str, seconds: float) -> None:
        """Do not ask a run's coordinator for a while; runs that are gone are forgotten by then."""
        now = self.clocks.monotonic()
        for late in [one for one, until in self.unreachable.items() if until <= now]:
            del self.unreachable[late]
        self.unreachable[uid] = now + seconds

    def look(self, stored: Stored) -> Observed:
        """One run as it is, as far as the store knows."""
        spec = json.loads(stored.spec)
        status = RunStatus.model_validate(_known_only(stored.read_status()))
        looked = self._look(stored, spec)
        place = (stored.key.namespace, stored.uid)
        children, pods = self.store.children(*place), self.store.pods(*place)
        unverified = find_unverified(children, self.keyring())
        unread = find_unread(children, self.keyring())
        left_out = unverified | {(one.kind, one.name) for one in unread}
        nodes = {pod.node: self.store.node(pod.node) for pod in pods}
        return Observed(
            name=stored.key.name,
            namespace=stored.key.namespace,
            uid=stored.uid,
            generation=stored.generation,
            settled=looked.settled,
            suspend=bool(spec.get("suspend")),
            spec=looked.spec,
            filled=looked.filled,
            runtime=looked.runtime,
            status=status,
            gate=looked.gate,
            children={at: one for at, one in children.items() if at not in left_out},
            unverified=tuple(sorted(name for _, name in unverified)),
            unread=unread,
            pods=pods,
            nodes={name: node for name, node in nodes.items() if isinstance(node, Node)},
            watches_nodes=self.watches_cluster,
            namespaced=not self.watches_cluster,
            coordinator_reachable=self.unreachable.get(stored.uid, 0.0) < self.clocks.monotonic(),
            queue=queue_of(looked.spec, looked.runtime, stored.labels()) if looked.spec else "",
            kueue_served=self.asker.served(),
            quota=self.store.quota(*place),
            tracker=stored.tracker(),
            snapshots=find_made(self.store, stored),
            coordinator_role=self.platform().coordinator_role,
        )

    async def build_inputs(self, observed: Observed, stored: Stored) -> Inputs:
        """What rendering a new attempt takes."""
        assert observed.spec is not None
        upstreams = self._upstreams(observed, stored, json.loads(stored.spec))
        spec = _substitute(observed.spec, upstreams)
        classes = await self._cluster.classes() if needs_volume(spec) else None
        drivers = await self._cluster.drivers() if classes else frozenset()
        quota = observed.quota
        source = await self._restored(observed, json.loads(stored.spec))
        return replace(
            self._inputs(observed),
            spec=spec,
            storage_class=wanted_class(spec),
            access_mode=access_mode(spec, classes, drivers),
            restore=None if source is None else await self._restore_order(source, observed),
            sources=tuple(sorted({one.claim for one in upstreams if one.claim})),
            placements=await self.asker.placements(quota) if quota is not None else {},
        )

    async def _restore_order(self, source: RestoreSource, observed: Observed) -> RestoreOrder:
        wanted = observed.spec.restore_from if observed.spec is not None else None
        return order_restore(source, wanted, observed.runtime, await self.trusted())

    def _inputs(self, observed: Observed) -> Inputs:
        """What can be said of an attempt without asking anybody."""
        assert observed.spec is not None
        return Inputs(
            name=observed.name,
            namespace=observed.namespace,
            uid=observed.uid,
            attempt=current_attempt(observed),
            generation=observed.generation,
            settled=observed.settled,
            spec=observed.spec,
            runtime=observed.runtime,
            platform=self.platform(),
            progress_seconds=self.progress_seconds(),
        )

    def progress_seconds(self) -> float:
        """Time between progress writes of one run, so that all that run together write 20 a second."""
        return max(PROGRESS_SECONDS_MIN, round(self.store.index.num_at_work / RUNS_PER_SECOND))

    # -- the spec on its runtime ------------------------------------------------------------------------

    def _look(self, stored: Stored, spec: Mapping[str, Any]) -> Looked:
        runtime, version, gate = find_runtime(
            self.store, stored.key.namespace, spec.get("runtimeRef")
        )
        key = (stored.uid, stored.generation, version, self.platform().sandboxes)
        if (known := self._specs.get(key)) is not None:
            self._specs.move_to_end(key)
            return known
        looked = self._resolve(stored, spec, runtime, gate)
        if looked.gate is not None:
            looked = replace(looked, gate=replace(looked.gate, retry_seconds=REST_SECONDS))
        self._specs[key] = looked
        while len(self._specs) > SPECS_MAX:
            self._specs.popitem(last=False)
        return looked

    def _resolve(
        self, stored: Stored, spec: Mapping[str, Any], runtime: RuntimeSpec, gate: Blocked | None
    ) -> Looked:
        if stored.excess:
            too_large = Blocked(reason=Reason.INVALID_SPEC, message=stored.excess)
            return Looked(runtime=runtime, spec=None, gate=too_large)
        if invalid := check_form(stored.document()):
            return Looked(runtime=runtime, spec=None, gate=invalid)
        try:
            own = RolloutRunSpec.model_validate(spec)
            resolved = resolve_spec(spec, runtime)
            filled = filled_by_presets(spec, runtime)
        except ValueError as error:
            invalid = Blocked(reason=Reason.INVALID_SPEC, message=str(error))
            return Looked(runtime=runtime, spec=None, gate=invalid)
        gate = gate or check_allowed(own, runtime.allowed, stored.key.namespace)
        gate = gate or check_platform(resolved, runtime, sandboxes=self.platform().sandboxes)
        return Looked(
            runtime=runtime,
            settled=settled_digest(own),
            filled=filled,
            spec=resolved,
            gate=gate,
        )

    # -- what is asked before a start ---------------------------------------------------------------------

    async def check(self, observed: Observed, stored: Stored) -> Observed:
        """With the gate of what has to be asked for before an attempt starts. Raises KubeError."""
        started = find_record(observed, current_attempt(observed)) is not None
        if started and self.store.has_begun(stored.key):
            self.store.places.hold(stored)
        if started or observed.gate or observed.suspend or observed.spec is None:
            return observed
        spec = json.loads(stored.spec)
        gate = await self._moved(observed, spec)
        gate = gate or await find_unserved_labels(
            self.client, observed.runtime, observed.namespace, spec
        )
        gate = gate or check_upstreams(self._upstreams(observed, stored, spec))
        source = await self._restored(observed, spec)
        gate = gate or (check_restore(source) if source is not None else None)
        if gate is None:
            gate = await find_missing(self.client, stored.key.namespace, spec)
        if gate is None and needs_volume(observed.spec):
            gate = check_storage(observed.spec, await self._cluster.classes())
        if gate is None:
            gate = self.store.places.take(stored, self.runs_per_namespace)
        if gate is not None:
            return replace(observed, gate=gate)
        return await self.asker.check(observed, stored.labels(), lambda: self._inputs(observed))

    def _upstreams(
        self, observed: Observed, stored: Stored, spec: Mapping[str, Any]
    ) -> tuple[Upstream, ...]:
        return keep_own(find_upstreams(self.store, stored.key, spec), readable_by(observed))

    async def _restored(self, observed: Observed, spec: Mapping[str, Any]) -> RestoreSource | None:
        """The snapshot that the run begins with; None for one that begins with its model."""
        given = observed.spec.restore_from if observed.spec is not None else None
        if given is not None and given.object is not None:
            return source_at(given.object, readable_by(observed))
        name = restored_name(spec)
        if not name:
            return None
        found = self.store.find(Key(namespace=observed.namespace, name=name, kind=SNAPSHOT))
        status = None if found is None else found.read_status()
        deleting = found is not None and found.deleting
        source = find_source(name, status, readable_by(observed), deleting=deleting)
        if source.state not in LOST:
            return source
        return told_before(source, await self._order_before(observed), spec)

    async def _moved(self, observed: Observed, spec: Mapping[str, Any]) -> Blocked | None:
        """A spec of which the attempt before had more than the API server keeps today."""
        order = await self._order_before(observed)
        return None if order is None else check_moved(order, spec)

    async def _order_before(self, observed: Observed) -> str | None:
        """What the attempt before was told (JSON); None for the first."""
        before = next(iter(records(observed)), None)
        if before is None:
            return None
        live = await self.client.get(CONFIG_MAPS, observed.namespace, before.name)
        return read_record(live, self.keyring()).config_map["data"][ORDER_FILE]


def readable_by(observed: Observed) -> Readable:
    """Where a run may read what others of its namespace have left."""
    own = observed.spec.storage if observed.spec is not None else None
    storages = (own, observed.runtime.storage)
    return Readable(
        namespace=observed.namespace,
        roots=tuple(one.uri for one in storages if one is not None and one.uri is not None),
        lists=observed.runtime.allowed or Allowed(),
        volume=claim_name(observed.name, observed.uid),
    )


def find_unverified(
    children: Mapping[tuple[str, str], Child], keyring: Keyring
) -> frozenset[tuple[str, str]]:
    """Places of ConfigMaps that would be records and that no key of ours has signed."""
    return frozenset(
        place
        for place, child in children.items()
        if child.expected and not keyring.verify(child.content, child.signature)
    )


def find_unread(children: Mapping[tuple[str, str], Child], keyring: Keyring) -> tuple[Child, ...]:
    """Records that we have signed, of a format that we do not read: the newest first, then by name."""
    found = [
        child
        for child in children.values()
        if child.expected
        and child.format != RECORD_FORMAT
        and keyring.verify(child.content, child.signature)
    ]
    return tuple(sorted(found, key=lambda child: (-child.attempt, child.name)))


def _substitute(spec: RolloutRunSpec, upstreams: tuple[Upstream, ...]) -> RolloutRunSpec:
    uris = {(one.name, one.snapshot): one.uri for one in upstreams if one.uri is not None}
    if not uris:
        return spec
    document = spec.model_dump(mode="json", exclude_none=True)
    return RolloutRunSpec.model_validate(with_uris(document, uris))


def _known_only(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status without fields that this version does not know (written by a newer one)."""
    known = {field.alias or name for name, field in RunStatus.model_fields.items()}
    return {name: value for name, value in status.items() if name in known}
