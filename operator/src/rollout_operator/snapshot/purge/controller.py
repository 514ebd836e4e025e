"""A deleted snapshot, from what is known to what shall be: observe, plan, start the Job, say so, let go.

Nothing is remembered: an operator that is started again between any two calls finds Job and condition, and goes on. It holds
no credential of a store, and sends nothing but one service account and one Job in the snapshot's own namespace.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace

from rollout_api import names
from rollout_api.checks.pods.allowed import find_storage_not_allowed, is_plain
from rollout_api.conditions import Reason
from rollout_api.names import SNAPSHOT_MANIFESTS
from rollout_api.places import run_place
from rollout_api.v1alpha1.pods.allowed import Allowed
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.v1alpha1.snapshot import SnapshotStatus
from rollout_api.v1alpha1.storage import Storage
from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.controller.queue import Key
from rollout_operator.errors import (
    NotFound,
    Terminating,
)
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import CLAIMS, SNAPSHOTS
from rollout_operator.other_kinds import Send
from rollout_operator.run.events import Poster
from rollout_operator.run.index.references import RUN, SNAPSHOT
from rollout_operator.run.plan.preconditions.checks import describe
from rollout_operator.run.render.volumes import claim_name
from rollout_operator.snapshot.purge.job import PurgeInputs, build_purge
from rollout_operator.snapshot.purge.plan import (
    LedgerState,
    PurgePlan,
    PurgeSeen,
    plan_purge,
    wants_finalizer,
    with_finalizer,
)
from rollout_operator.snapshot.running import Errands, ReasonMessage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The snapshot, as events name it."""

    name: str
    namespace: str
    uid: str


@dataclass(slots=True, kw_only=True)
class Purger:
    """Everything that purging uses."""

    client: KubeClient
    store: Store
    send: Send
    poster: Poster
    errands: Errands
    clocks: Clocks = CLOCKS

    async def keep_finalizer(self, stored: Stored, status: SnapshotStatus) -> Stored:
        """Of a snapshot that is not being deleted: our finalizer is there if its bytes shall go. Raises KubeError."""
        policy = json.loads(stored.spec).get("deletionPolicy", "Retain")
        return await self._set(stored, wanted=wants_finalizer(policy=policy, status=status))

    async def reconcile(self, stored: Stored, status: SnapshotStatus) -> float | None:
        """Work on a snapshot that is being deleted. Raises KubeError."""
        if names.FINALIZER_SNAPSHOT not in _finalizers(stored):
            return None
        try:
            seen, inputs = await self._see(stored, status)
            plan = plan_purge(seen, self.clocks.now())
            stored = await self._say(stored, plan)
            if plan.starts and inputs is not None:
                plan = await self._start(stored, inputs, seen, plan)
        except Terminating:
            place = _place_of(status, stored.key.namespace)
            gone = PurgeSeen(
                generation=stored.generation, wanted=True, status=status, place=place, gone=True
            )
            plan = plan_purge(gone, self.clocks.now())
            await self._tell(stored, plan)
        if plan.lets_go:
            words = plan.note.message if plan.note is not None else "nothing to remove"
            log.info("snapshot let go key=%s words=%s", stored.key, words)
            await self._set(stored, wanted=False)
            return None
        return plan.requeue_seconds

    # -- what is there ----------------------------------------------------------------------------------

    async def _see(
        self, stored: Stored, status: SnapshotStatus
    ) -> tuple[PurgeSeen, PurgeInputs | None]:
        namespace = stored.key.namespace
        policy = json.loads(stored.spec).get("deletionPolicy", "Retain")
        seen = PurgeSeen(generation=stored.generation, wanted=policy == "Delete", status=status)
        if status.run is None or status.run.uid is None or not seen.wanted:
            return replace(seen, place=_place_of(status, namespace)), None
        runtime = self._runtime(status, namespace)
        ledger = await self._ledger(status, namespace)
        blocked = runtime if isinstance(runtime, tuple) else _misplaced(status, runtime, namespace)
        seen = replace(
            seen,
            place=_place_of(status, namespace),
            run=ledger,
            work=await self.errands.look(stored, names.purge_name(stored.uid)),
            blocked=blocked,
        )
        if blocked is not None or isinstance(runtime, tuple) or status.storage is None:
            return seen, None
        return seen, PurgeInputs(
            name=stored.key.name,
            namespace=namespace,
            uid=stored.uid,
            run_name=status.run.name,
            run_uid=status.run.uid,
            ledger=ledger,
            storage=status.storage.as_storage(),
            runtime=runtime,
            platform=self.errands.platform(),
        )

    def _runtime(self, status: SnapshotStatus, namespace: str) -> RuntimeSpec | ReasonMessage:
        if status.runtime_ref is None:
            return Reason.RUNTIME_NOT_FOUND, "its status names no runtime to reach the bytes with"
        return self.errands.find_runtime(status.runtime_ref, namespace)

    async def _ledger(self, status: SnapshotStatus, namespace: str) -> LedgerState:
        """Whether anything may still name the run's objects."""
        assert status.run is not None
        assert status.run.uid is not None
        key = Key(namespace=namespace, name=status.run.name, kind=RUN)
        run = self.store.find(key)
        lives = run is not None and run.uid == status.run.uid
        if lives and run is not None and not run.deleting and not run.facts.finished:
            return "Alive"
        if self.store.pods(namespace, status.run.uid):
            return "Draining"
        if status.storage is not None and status.storage.postgres is not None:
            return "Kept"
        try:
            claim = claim_name(status.run.name, status.run.uid)
            await self.client.get(CLAIMS, namespace, claim, metadata_only=True)
        except NotFound:
            return "Gone"
        return "Kept"

    # -- what is done -------------------------------------------------------------------------------------

    async def _start(
        self, stored: Stored, inputs: PurgeInputs, seen: PurgeSeen, plan: PurgePlan
    ) -> PurgePlan:
        """Make the Job; where that is refused, the plan that says so."""
        trouble = await self.errands.start(build_purge(inputs))
        if trouble is None:
            return plan
        plan = plan_purge(replace(seen, blocked=trouble), self.clocks.now())
        await self._say(stored, plan)
        return plan

    async def _say(self, stored: Stored, plan: PurgePlan) -> Stored:
        """The event first: once the status says so, it is old news."""
        await self._tell(stored, plan)
        if plan.status is None:
            return stored
        await self.send(stored, plan.status)
        return self.store.find(stored.key) or stored

    async def _tell(self, stored: Stored, plan: PurgePlan) -> None:
        if plan.note is None or (plan.status is None and not plan.lets_go):
            return
        key = stored.key
        subject = Subject(name=key.name, namespace=key.namespace, uid=stored.uid)
        await self.poster.post(subject, 0, plan.note, SNAPSHOT)

    async def _set(self, stored: Stored, *, wanted: bool) -> Stored:
        """Our finalizer, there or not; those of others stay. Bound to the object as it was seen."""
        after = with_finalizer(_finalizers(stored), wanted=wanted)
        if after is None:
            return stored
        key = stored.key
        meta = {"uid": stored.uid, "resourceVersion": str(stored.version), "finalizers": after}
        try:
            answer = await self.client.merge(
                {"metadata": meta},
                SNAPSHOTS,
                key.namespace,
                key.name,
                manager=names.MANAGER_CHILDREN,
            )
        except NotFound:
            return stored
        self.store.put_object(key.kind, answer, notify=False)
        return self.store.find(key) or stored


def _finalizers(stored: Stored) -> tuple[str, ...]:
    return tuple(json.loads(stored.meta).get("finalizers") or ())


def _place_of(status: SnapshotStatus, namespace: str) -> str:
    """Where the bytes lie: made from what the operator knows, not read from an address."""
    if status.storage is None or status.run is None:
        return ""
    return run_place(status.storage.uri, namespace, status.run.uid or "")


def _misplaced(
    status: SnapshotStatus, runtime: RuntimeSpec, namespace: str
) -> tuple[Reason, str] | None:
    """Why the place that a status names is not one of this namespace's on this runtime."""
    storage = status.storage
    if storage is None:
        return Reason.NOT_SUPPORTED, "its status names no bucket: an earlier release took it"
    place, uid = _place_of(status, namespace), status.run.uid if status.run is not None else ""
    if "/" in (uid or "/") or not is_plain(place):
        return Reason.NOT_ALLOWED, f"{place[:200]!r} is not a plain place of one run"
    location = status.location.object if status.location is not None else None
    if location is not None and not location.uri.startswith(f"{place}/{SNAPSHOT_MANIFESTS}"):
        words = f"its status names {location.uri[:200]!r}, expected one below {place}/"
        return Reason.NOT_ALLOWED, words
    own = runtime.storage or Storage()
    if (storage.uri, storage.endpoint) == (own.uri, own.endpoint):
        return None
    faults = list(
        find_storage_not_allowed(storage.as_storage(), runtime.allowed or Allowed(), namespace)
    )
    return (Reason.NOT_ALLOWED, describe(faults)) if faults else None
