"""One RolloutEndpoint, from what is known to what shall be: observe, plan, render, apply, say so."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from rollout_api import names
from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.controller.backoff import asked_seconds
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.endpoint.apply import EndpointApplier
from rollout_operator.endpoint.history import needs_record, read_history
from rollout_operator.endpoint.inputs import KIND
from rollout_operator.endpoint.model import EndpointPlan, EndpointSeen
from rollout_operator.endpoint.observe import EndpointLook, look
from rollout_operator.endpoint.plan import find_pending, is_up, plan_endpoint
from rollout_operator.endpoint.trouble import find_trouble
from rollout_operator.errors import KubeError, Terminating
from rollout_operator.jobs.jobs import JobOwner, Jobs
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import PODS
from rollout_operator.other_kinds import Send
from rollout_operator.run.controller import FAILURES_TOLD_MAX, PEOPLE_MEND, gate_of
from rollout_operator.run.events import Poster
from rollout_operator.run.index.references import served_snapshot
from rollout_operator.run.render.inputs import Platform
from rollout_operator.run.surroundings import find_missing, find_unserved_labels

log = logging.getLogger(__name__)

PODS_MAX = 50
"""Looked at for why they do not come up."""


@dataclass(slots=True, kw_only=True)
class EndpointController:
    """Everything that a reconcile uses. ``trusted``: whose snapshots servers may serve; ``served``: optional kinds that are there."""

    client: KubeClient
    store: Store
    queue: KeyQueue
    platform: Callable[[], Platform]
    send: Send
    poster: Poster
    trusted: Callable[[], Awaitable[tuple[str, ...]]]
    served: Callable[[], set[str]]
    clocks: Clocks = CLOCKS
    kind: str = KIND
    _applier: EndpointApplier = field(init=False)

    def __post_init__(self) -> None:
        """Children have one way out."""
        self._applier = EndpointApplier(client=self.client, store=self.store)

    async def reconcile(self, key: Key) -> float | None:
        """Work on one key. Raises KubeError for what the queue shall try again."""
        stored = self.store.find(key)
        if stored is None:
            self.queue.forget(key)
            return None
        if stored.deleting:
            return None
        document = json.loads(stored.spec)
        goes_back = bool(document.get("rollbackTo"))
        history = await self._read_history(stored) if goes_back else {}
        signers = await self.trusted() if goes_back or served_snapshot(document) else ()
        looked = look(stored, self.store, self.platform, signers, history, self.served())
        try:
            looked = await self._check(stored, looked)
            plan = plan_endpoint(looked.seen, self.clocks.now())
            await self._applier.act(looked.seen, plan, looked.inputs, looked.revision)
        except Terminating:
            return None
        except PEOPLE_MEND as error:
            return await self._tell(stored, looked, error)
        except KubeError as error:
            if self.queue.failures(key) >= FAILURES_TOLD_MAX:
                return await self._tell(stored, looked, error)
            raise
        await self._say(stored, looked, plan)
        self.queue.forgive(key)
        return plan.requeue_seconds

    async def _check(self, stored: Stored, looked: EndpointLook) -> EndpointLook:
        """What is asked of the API server: before a revision is made, and while it does not come up. Raises KubeError."""
        seen, inputs = looked.seen, looked.inputs
        if inputs is None or seen.suspend:
            return looked
        if seen.target in seen.servers:
            seen = await self._measure(await self._listen(seen))
        else:
            spec = inputs.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
            gate = await find_unserved_labels(self.client, inputs.runtime, seen.namespace, spec)
            gate = gate or await find_missing(self.client, seen.namespace, spec)
            if gate is not None:
                return EndpointLook(seen=replace(seen, gate=gate))
        if needs_record(seen) and not seen.history:
            seen = replace(seen, history=await self._read_history(stored))
        return replace(looked, seen=seen)

    async def _read_history(self, stored: Stored) -> dict[str, str]:
        key = stored.key
        return await read_history(self.client, key.namespace, key.name, stored.uid)

    async def _listen(self, seen: EndpointSeen) -> EndpointSeen:
        """With what pods say that do not come up. Raises KubeError."""
        if is_up(seen) or seen.servers[seen.target].failed or not seen.replicas:
            return seen
        labels = names.server_labels(seen.name, seen.uid)
        chosen = ",".join(f"{key}={value}" for key, value in labels.items())
        found = await self.client.list(
            PODS, seen.namespace, labelSelector=chosen, limit=str(PODS_MAX)
        )
        return replace(seen, trouble=find_trouble(found["items"], seen.target))

    async def _measure(self, seen: EndpointSeen) -> EndpointSeen:
        """With how far the Job is that measures or watches the target. Raises KubeError."""
        pending = find_pending(seen)
        if pending is None:
            return seen
        owner = JobOwner(kind=KIND, namespace=seen.namespace, uid=seen.uid)
        work = await Jobs(client=self.client).look(owner, pending.job)
        looked = replace(pending, work=work)
        return replace(seen, trials=tuple(looked if one is pending else one for one in seen.trials))

    async def _say(self, stored: Stored, looked: EndpointLook, plan: EndpointPlan) -> None:
        if plan.status is None:
            return
        for note in plan.notes:  # before the status, which would make them old news
            await self.poster.post(looked.seen, looked.seen.generation, note, KIND)
        await self.send(stored, plan.status)

    async def _tell(self, stored: Stored, looked: EndpointLook, error: Exception) -> None:
        """Say in the status what a person must mend, and try again later."""
        gate = gate_of(error)
        told = EndpointLook(seen=replace(looked.seen, gate=gate))
        await self._say(stored, told, plan_endpoint(told.seen, self.clocks.now()))
        wait = self.queue.retry(stored.key, gate.retry_seconds, asked_seconds(error))
        log.warning(
            "endpoint blocked endpoint=%s/%s reason=%s retry_seconds=%.0f error=%s",
            stored.key.namespace,
            stored.key.name,
            gate.reason,
            wait,
            error,
        )
