"""One RolloutSnapshot, from what is known to what shall be: observe, plan, ask the run's coordinator, say so.

The operator sees no byte of a snapshot. It has it made where the run's ledger is, vouches for its id with a key that
stays in the operator's namespace, and writes down where it lies.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from rollout_api.checks.unbuilt import check_snapshot
from rollout_api.conditions import Reason
from rollout_api.names import LABEL_SCHEDULE
from rollout_api.places import run_place
from rollout_api.v1alpha1.common import RuntimeRef
from rollout_api.v1alpha1.snapshot import SnapshotSpec, SnapshotStatus, storage_of
from rollout_operator.cache.objects import Stored
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.controller.times import parse_time
from rollout_operator.errors import CoordinatorUnreachable, Forbidden, Refused
from rollout_operator.other_kinds import Send
from rollout_operator.run.coordinator import Calls
from rollout_operator.run.index.references import RUN, SNAPSHOT, runtime_keys
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.plan.model import Observed
from rollout_operator.run.plan.saving.schedules import END, SUSPEND
from rollout_operator.run.render.volumes import claim_name
from rollout_operator.snapshot.adopt.controller import Adopter
from rollout_operator.snapshot.answers import SnapshotAnswer, parse_answer
from rollout_operator.snapshot.keys import SnapshotSigner
from rollout_operator.snapshot.plan import (
    RunSeen,
    SnapshotPlan,
    SnapshotSeen,
    plan_answer,
    plan_refused,
    plan_silence,
    plan_snapshot,
)
from rollout_operator.snapshot.purge.controller import Purger

log = logging.getLogger(__name__)

CROWDED_SECONDS = 1.0
PARTING = frozenset({SUSPEND, END})


class SnapshotCoordinators(Protocol):
    """How coordinators are reached; tests give another."""

    async def snapshot(self, observed: Observed, body: Mapping[str, Any]) -> str:
        """The coordinator's answer, as it came. Raises CoordinatorUnreachable."""
        ...


@dataclass(slots=True, kw_only=True)
class SnapshotController:
    """Everything that a reconcile uses. ``look`` gives a run as it is; ``calls`` bounds those to coordinators."""

    store: RunStore
    queue: KeyQueue
    look: Callable[[Stored], Observed]
    coordinators: SnapshotCoordinators
    signer: Callable[[], Awaitable[SnapshotSigner]]
    send: Send
    purger: Purger
    adopter: Adopter
    calls: Calls = field(default_factory=Calls)
    clocks: Clocks = CLOCKS
    count: Callable[[float, int], None] | None = None
    """Told the seconds and bytes of each snapshot that has become durable."""
    kind: str = SNAPSHOT

    async def reconcile(self, key: Key) -> float | None:
        """Work on one key. Raises KubeError for what the queue shall try again."""
        stored = self.store.find(key)
        if stored is None:
            self.queue.forget(key)
            return None
        if stored.deleting:
            return await self.purger.reconcile(stored, _read_leniently(stored))
        status = read_status(stored)
        return await self._take(await self.purger.keep_finalizer(stored, status))

    async def _take(self, stored: Stored) -> float | None:
        """One that is wanted: told as it is, and asked for until it is durable."""
        key, run = stored.key, self._find_run(stored)
        seen = see(stored, run)
        if seen.spec is not None and seen.spec.source.existing is not None:
            again = await self.adopter.reconcile(stored, seen)
            self.queue.forgive(key)
            return again
        if seen.run is not None:
            seen = replace(seen, run=replace(seen.run, runtime=self._find_runtime(stored)))
        plan = plan_snapshot(seen, self.clocks.now())
        if plan.asks or plan.requeue_seconds is not None:
            plan = await self._find_key(seen) or plan
        if plan.asks:
            assert run is not None
            with self.calls.place(key.namespace) as free:
                if not free:
                    return CROWDED_SECONDS
                plan = await self._ask(seen, run)
        if plan.status is not None:
            await self.send(stored, plan.status)
        if self.count is not None and plan.bytes_taken is not None:
            self.count(_seconds_since(seen, self.clocks.now()), plan.bytes_taken)
        self.queue.forgive(key)
        return plan.requeue_seconds

    def _run_key(self, stored: Stored) -> Key:
        source = json.loads(stored.spec).get("source") or {}
        name = (source.get("run") or {}).get("name", "")
        return Key(namespace=stored.key.namespace, name=name, kind=RUN)

    def _find_run(self, stored: Stored) -> Observed | None:
        found = self.store.find(self._run_key(stored))
        return self.look(found) if found is not None and not found.deleting else None

    def _find_runtime(self, stored: Stored) -> RuntimeRef | None:
        """The runtime of the run that is saved: what it names, or the default that it has."""
        found = self.store.find(self._run_key(stored))
        if found is None:
            return None
        wanted = json.loads(found.spec).get("runtimeRef")
        for key in runtime_keys(stored.key.namespace, wanted):
            if self.store.find(key) is not None:
                return RuntimeRef.model_validate({"kind": key.kind, "name": key.name})
        return None

    async def _find_key(self, seen: SnapshotSeen) -> SnapshotPlan | None:
        """Before anything is saved: why it could not be signed; None where it can."""
        try:
            await self.signer()
        except (Forbidden, Refused) as error:
            return self._tell_refused(seen, error)
        return None

    def _tell_refused(self, seen: SnapshotSeen, error: Forbidden | Refused) -> SnapshotPlan:
        reason = Reason.FORBIDDEN if isinstance(error, Forbidden) else Reason.API_SERVER_REFUSED
        return plan_refused(seen, reason, str(error), self.clocks.now())

    async def _ask(self, seen: SnapshotSeen, run: Observed) -> SnapshotPlan:
        try:
            answer = await self._order(seen, run, {})
            if answer.state == "Unsigned":
                signer = await self.signer()
                value = signer.sign(run.namespace, run.uid, answer.id)
                signed = {"id": answer.id, "signer": signer.public, "signature": value}
                answer = await self._order(seen, run, signed)
        except CoordinatorUnreachable as error:
            log.warning("no snapshot yet snapshot=%s/%s error=%s", run.namespace, seen.name, error)
            words = f"the coordinator of run {run.name} does not answer"
            return plan_silence(seen, words, self.clocks.now())
        except (Forbidden, Refused) as error:
            return self._tell_refused(seen, error)
        return plan_answer(seen, answer, self.clocks.now())

    async def _order(
        self, seen: SnapshotSeen, run: Observed, signed: Mapping[str, str]
    ) -> SnapshotAnswer:
        source = seen.spec.source.run if seen.spec is not None else None
        step = source.step if source is not None else None
        wanted = {} if step is None else {"step": step}
        body = {"snapshot": seen.uid, "name": seen.name, **wanted, **signed}
        return parse_answer(await self.coordinators.snapshot(run, body))


def _seconds_since(seen: SnapshotSeen, now: datetime) -> float:
    """Since its run was found; of one that was taken at the first look, since it was made."""
    begun = seen.status.start_time
    since = seen.created if begun is None else parse_time(begun)
    return max(0.0, (now - since).total_seconds())


def see(stored: Stored, run: Observed | None) -> SnapshotSeen:
    """A RolloutSnapshot as the store has it."""
    spec: SnapshotSpec | None = None
    try:
        spec = SnapshotSpec.model_validate(json.loads(stored.spec))
        fault = "; ".join(f"{one.field}: {one.message}; {one.fix}" for one in check_snapshot(spec))
    except ValueError as error:
        fault = str(error)
    meta = json.loads(stored.meta)
    return SnapshotSeen(
        uid=stored.uid,
        name=stored.key.name,
        generation=stored.generation,
        created=parse_time(meta["creationTimestamp"]),
        spec=spec,
        fault=stored.excess or fault,
        status=read_status(stored),
        run=see_run(run) if run is not None else None,
        parting=stored.labels().get(LABEL_SCHEDULE) in PARTING,
    )


def see_run(run: Observed) -> RunSeen:
    """What of a run decides whether a snapshot of it can be taken, and where that lies."""
    storage = run.spec.storage if run.spec is not None else None
    uri = storage.uri if storage is not None else None
    held = {one.type for one in run.status.conditions if one.status == "True"}
    ready = any(pod.ready for pod in run.pods_of("coordinator"))
    return RunSeen(
        name=run.name,
        uid=run.uid,
        finished="Finished" in held,
        suspended=run.suspend,
        answers=ready and run.coordinator_reachable,
        place=run_place(uri, run.namespace, run.uid) if uri is not None else "",
        claim=claim_name(run.name, run.uid),
        storage=storage_of(storage),
    )


def read_status(stored: Stored) -> SnapshotStatus:
    """The status, as far as this version knows its fields."""
    return SnapshotStatus.model_validate(_known_only(stored.read_status()))


def _read_leniently(stored: Stored) -> SnapshotStatus:
    """Of one that is being deleted: a status that cannot be read must not hold it for ever, and says nothing."""
    try:
        return read_status(stored)
    except ValueError as error:
        log.warning("the status cannot be read key=%s error=%s", stored.key, error)
        return SnapshotStatus()


def _known_only(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status without fields that this version does not know (written by a newer one)."""
    known = {one.alias or name for name, one in SnapshotStatus.model_fields.items()}
    return {name: value for name, value in status.items() if name in known}
