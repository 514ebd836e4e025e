"""A RolloutSnapshot of one that exists, from what is known to what shall be: observe, plan, send a Job to read it, say so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rollout_api import names
from rollout_api.conditions import Reason
from rollout_api.places import SnapshotAt
from rollout_api.v1alpha1.common import RuntimeRef
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.v1alpha1.snapshot import SnapshotSpec
from rollout_api.v1alpha1.storage import Storage
from rollout_api.worker import AdoptOrder
from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.other_kinds import Send
from rollout_operator.run.index.references import runtime_keys
from rollout_operator.run.plan.preconditions.restoring import foreign_signers
from rollout_operator.run.render import contract
from rollout_operator.snapshot.adopt.plan import (
    find_misplaced,
    parse_existing,
    plan_begin,
    plan_trouble,
    plan_work,
)
from rollout_operator.snapshot.errand import Errand, as_text
from rollout_operator.snapshot.keys import SnapshotSigner
from rollout_operator.snapshot.plan import SnapshotPlan, SnapshotSeen
from rollout_operator.snapshot.running import Errands, ReasonMessage


@dataclass(slots=True, kw_only=True)
class Adopter:
    """Everything that adopting uses."""

    store: Store
    send: Send
    errands: Errands
    signer: Callable[[], Awaitable[SnapshotSigner]]
    clocks: Clocks = CLOCKS

    async def reconcile(self, stored: Stored, seen: SnapshotSeen) -> float | None:
        """Work on a snapshot that exists. Raises KubeError."""
        plan = plan_begin(seen, self.clocks.now()) or await self._look(stored, seen)
        if plan.status is not None:
            await self.send(stored, plan.status)
        return plan.requeue_seconds

    async def _look(self, stored: Stored, seen: SnapshotSeen) -> SnapshotPlan:
        assert seen.spec is not None
        assert seen.spec.source.existing is not None
        given, now = seen.spec.source.existing, self.clocks.now()
        existing = parse_existing(given)
        if isinstance(existing, str):
            return plan_trouble(seen, (Reason.INVALID_SPEC, existing), now)
        runtime = self._runtime(stored, seen.spec, existing)
        if isinstance(runtime, tuple):
            return plan_trouble(seen, runtime, now)
        work = await self.errands.look(stored, names.adopt_name(stored.uid))
        plan = plan_work(seen, existing, given.uri, work, now)
        if plan.asks:
            errand = await self._errand(stored, seen.spec, existing, runtime)
            trouble = await self.errands.start(errand)
            return plan if trouble is None else plan_trouble(seen, trouble, now)
        return plan

    def _runtime(
        self, stored: Stored, spec: SnapshotSpec, existing: SnapshotAt
    ) -> RuntimeSpec | ReasonMessage:
        """The runtime that reaches it, which lets this namespace read the place."""
        namespace = stored.key.namespace
        wanted = spec.runtime_ref.model_dump() if spec.runtime_ref is not None else None
        keys = runtime_keys(namespace, wanted)
        key = next((one for one in keys if self.store.find(one) is not None), keys[-1])
        reference = RuntimeRef.model_validate({"kind": key.kind, "name": key.name})
        found = self.errands.find_runtime(reference, namespace)
        if isinstance(found, tuple):
            return found
        return find_misplaced(existing.place, found, namespace) or found

    async def _errand(
        self, stored: Stored, spec: SnapshotSpec, existing: SnapshotAt, runtime: RuntimeSpec
    ) -> Errand:
        storage = runtime.storage or Storage()
        own = (await self.signer()).public
        order = AdoptOrder(
            snapshot=existing.id,
            place=existing.place,
            trusted=(own, *runtime.trusted_signers),
            foreign=foreign_signers(runtime, (own,)),
            namespace=stored.key.namespace,
            endpoint=storage.endpoint,
            region=storage.region,
        )
        text = as_text(order.model_dump_json(by_alias=True, exclude_none=True))
        return Errand(
            kind="adopt",
            job=names.adopt_name(stored.uid),
            name=stored.key.name,
            namespace=stored.key.namespace,
            uid=stored.uid,
            runtime=runtime,
            platform=self.errands.platform(),
            command=contract.ADOPT_COMMAND,
            seconds=spec.deadline_seconds,
            env=[{"name": contract.ADOPT_ORDER, "value": text}],
        )
