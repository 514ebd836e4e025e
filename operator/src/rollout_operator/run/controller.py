"""One key, from what is known to what shall be: observe, plan, apply, say so.

Every failure is named. What a person must mend is said in the status and tried again with growing
pauses; what passes by itself is tried again quietly. Nothing here decides anything about a run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from rollout_api.conditions import Reason
from rollout_api.fields.live import live_part
from rollout_operator.cache.objects import Stored
from rollout_operator.controller.backoff import asked_seconds
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.errors import (
    ChildRefused,
    CoordinatorUnreachable,
    FieldConflict,
    Forbidden,
    KubeError,
    RecordFormatUnknown,
    RecordUnverified,
    Refused,
    Terminating,
)
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import resource_of
from rollout_operator.run.apply import Applier
from rollout_operator.run.coordinator import Calls, Coordinators
from rollout_operator.run.events import Poster
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.observe import Observer
from rollout_operator.run.plan.attempts import misses_record
from rollout_operator.run.plan.model import Blocked, Desired, Observed, Plan
from rollout_operator.run.plan.plan import plan_run
from rollout_operator.run.plan.status.events import build_deletion_events
from rollout_operator.run.queue.keeper import AGAIN_SECONDS, Keeper
from rollout_operator.run.record_keys import RecordKeys
from rollout_operator.run.render.inputs import Inputs
from rollout_operator.run.saving import Saver
from rollout_operator.run.status import StatusWriter

log = logging.getLogger(__name__)

CONTROLLER = "rollout.dev/operator"
UNREACHABLE_SECONDS = 15.0
CROWDED_SECONDS = 1.0
FAILURES_TOLD_MAX = 5
TOLD_SECONDS_MIN = 10.0
REFUSED_SECONDS = 120.0
"""Trying again changes nothing that we refuse ourselves."""
WORDS_LENGTH_MAX = 600
OUR_REFUSALS: Mapping[type[Exception], Reason] = {
    ChildRefused: Reason.CHILD_REFUSED,
    RecordFormatUnknown: Reason.RECORD_FORMAT_UNKNOWN,
    RecordUnverified: Reason.RECORD_UNVERIFIED,
}
"""What we refuse ourselves, with its reason."""
PEOPLE_MEND = (
    ChildRefused,
    FieldConflict,
    Forbidden,
    RecordFormatUnknown,
    RecordUnverified,
    Refused,
)
FOR_QUEUE = (Reason.KUEUE_NOT_INSTALLED.value,)


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Everything that a reconcile uses."""

    client: KubeClient
    store: RunStore
    queue: KeyQueue
    observer: Observer
    applier: Applier
    coordinators: Coordinators
    poster: Poster
    keeper: Keeper
    record_keys: RecordKeys
    saver: Saver
    calls: Calls = field(default_factory=Calls)
    clocks: Clocks = CLOCKS
    kind: str = "RolloutRun"
    _speaker: StatusWriter = field(init=False)

    def __post_init__(self) -> None:
        """What is said has a memory of its own."""
        self._speaker = StatusWriter(
            client=self.client,
            store=self.store,
            queue=self.queue,
            poster=self.poster,
            clocks=self.clocks,
        )

    async def reconcile(self, key: Key) -> None:
        """Work on one key. Raises KubeError for what the queue shall try again."""
        stored = self.store.find(key)
        await self._release_quota(key, stored)
        if stored is None:
            self._speaker.forget(key)
        elif stored.deleting:
            self.applier.forget(stored.uid)
        elif _is_ours(json.loads(stored.spec)):
            try:
                await self._reconcile_run(stored)
            finally:
                made = self.store.has_begun(key)
                if (freed := self.store.places.settle(stored, made=made)) is not None:
                    self.queue.put(freed)

    async def send_status(self, stored: Stored, status: Mapping[str, Any]) -> None:
        """Write the status of an object of any kind of ours, as it was seen. Raises KubeError."""
        await self._speaker.send(stored, status)

    async def _release_quota(self, key: Key, stored: Stored | None) -> None:
        """Of runs that are gone, or going: the Workload stays until the last pod is gone."""
        living = "" if stored is None or stored.deleting else stored.uid
        if not await self.keeper.release_orphans(key, living):
            self.queue.put_later(key, AGAIN_SECONDS)
        elif stored is None:
            self.queue.forget(key)

    async def _look(self, stored: Stored) -> Observed:
        """What is there. Where a record does not verify, its key may have been rotated a moment ago."""
        observed = self.observer.look(stored)
        if observed.unverified:
            await self.record_keys.look_again()
            observed = self.observer.look(stored)
        return replace(observed, secret_sought=self.applier.sought(observed.uid))

    async def _recall(self, observed: Observed, stored: Stored) -> Observed:
        """With whether the attempt that was told of has lost its record, and cannot get it back as it was."""
        if not misses_record(observed):
            return observed
        inputs = await self.observer.build_inputs(observed, stored)
        return replace(observed, record_lost=await self.applier.is_lost(observed, inputs))

    async def _reconcile_run(self, stored: Stored) -> None:
        observed = await self._look(stored)
        now = self.clocks.now()
        inputs: Inputs | None = None
        try:
            observed = await self.observer.check(observed, stored)
            observed = await self._recall(observed, stored)
            plan = plan_run(observed, now)
            if plan.wanted is not None and plan.wanted.record is None:
                inputs = await self.observer.build_inputs(observed, stored)
            if plan.delete_run:
                await self._delete_run(stored)
                return
            plan = await self._act(observed, plan, inputs, now)
            plan = await self._save(observed, plan, now)
        except Terminating:
            return
        except PEOPLE_MEND as error:
            await self._tell(observed, stored, error)
            return
        except KubeError as error:
            if self.queue.failures(stored.key) >= FAILURES_TOLD_MAX:
                await self._tell(observed, stored, error)
                return
            raise
        await self._speaker.say(stored, observed, plan)
        self.queue.forgive(stored.key)
        if plan.requeue_seconds is not None:
            self.queue.put_later(stored.key, plan.requeue_seconds)

    async def _delete_run(self, stored: Stored) -> None:
        """The object of a run of which nothing else is left, as it was seen."""
        key = stored.key
        log.info("run deleted run=%s/%s uid=%s", key.namespace, key.name, stored.uid)
        await self.client.delete(
            resource_of(key.kind),
            key.namespace,
            key.name,
            uid=stored.uid,
            resource_version=str(stored.version),
        )

    async def _act(
        self, observed: Observed, plan: Plan, inputs: Inputs | None, now: datetime
    ) -> Plan:
        """Children, then the coordinator; the plan, with what only acting could tell."""
        if plan.remove_children:
            await self.applier.remove(observed)
        if plan.seek_secret:
            await self.applier.seek_secret(observed)
        if plan.wanted is not None:
            name = await self._ensure(observed, plan.wanted, inputs, now)
            if plan.wanted.record is None and plan.status is not None:
                plan = replace(plan, status={**plan.status, "configuration": name})
        await self.applier.lower(observed, plan.lower)
        if plan.stop_coordinator:
            await self._ask(observed, lambda: self.coordinators.stop(observed, "Suspended"))
        if plan.send_settings and not await self._send_settings(observed):
            status = dict(plan.status or {})
            status["settingsGeneration"] = observed.status.settings_generation
            plan = replace(
                plan,
                status=status if plan.status is not None else None,
                requeue_seconds=min(plan.requeue_seconds or 1e9, UNREACHABLE_SECONDS),
            )
        if plan.quota is not None and not await self.keeper.act(observed, plan.quota):
            plan = replace(plan, requeue_seconds=AGAIN_SECONDS)
        return plan

    async def _ensure(
        self, observed: Observed, wanted: Desired, inputs: Inputs | None, now: datetime
    ) -> str:
        """The name of the attempt's record. Pods that are deleted by force are told of first: then nothing shows them."""
        for note in build_deletion_events(wanted.deletions):
            await self.poster.post(observed, wanted.attempt, note)
        return await self.applier.ensure(observed, wanted, lambda: _given(inputs), now)

    async def _save(self, observed: Observed, plan: Plan, now: datetime) -> Plan:
        """Snapshots of its schedules; where that fails, the plan says so and has made none."""
        unsaved = await self.saver.save(observed, plan)
        if unsaved is None:
            return plan
        told = plan_run(replace(observed, unsaved=unsaved), now)
        status = None if told.status is None else dict(told.status)
        if status is not None and plan.status is not None and "configuration" in plan.status:
            status["configuration"] = plan.status["configuration"]
        again = min(plan.requeue_seconds or 1e9, unsaved.retry_seconds)
        return replace(plan, status=status, notes=told.notes, requeue_seconds=again)

    async def _send_settings(self, observed: Observed) -> bool:
        assert observed.spec is not None
        live = live_part(observed.spec).model_copy(
            update={"progress_seconds": self.observer.progress_seconds()}
        )
        body = {
            "generation": observed.generation,
            "live": live.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        return await self._ask(observed, lambda: self.coordinators.send_settings(observed, body))

    async def _ask(self, observed: Observed, call: Callable[[], Awaitable[None]]) -> bool:
        """Whether the coordinator did as asked; one that does not answer is left alone for a while.

        Where others of its namespace are being asked already, it is asked a little later.
        """
        with self.calls.place(observed.namespace) as free:
            if not free:
                key = Key(namespace=observed.namespace, name=observed.name, kind=self.kind)
                self.queue.put_later(key, CROWDED_SECONDS)
                return False
            try:
                await call()
            except CoordinatorUnreachable as error:
                log.warning("coordinator not reached run=%s error=%s", observed.name, error)
                self.observer.leave_alone(observed.uid, UNREACHABLE_SECONDS)
                return False
            return True

    async def _tell(self, observed: Observed, stored: Stored, error: Exception) -> None:
        """Say in the status what a person must mend, and try again later."""
        gate = gate_of(error)
        told = replace(observed, blocked=gate, gate=observed.gate or gate)
        plan = plan_run(told, self.clocks.now())
        await self._speaker.say(stored, observed, plan)
        wait = self.queue.retry(stored.key, gate.retry_seconds, asked_seconds(error))
        log.warning(
            "run blocked run=%s/%s reason=%s retry_seconds=%.0f error=%s",
            observed.namespace,
            observed.name,
            gate.reason,
            wait,
            error,
        )


def _given(inputs: Inputs | None) -> Inputs:
    assert inputs is not None
    return inputs


def _is_ours(spec: Mapping[str, Any]) -> bool:
    return spec.get("managedBy") in {None, CONTROLLER}


def gate_of(error: Exception) -> Blocked:
    """What a person must mend, as a condition says it."""
    if isinstance(error, FieldConflict):
        return Blocked(
            reason=Reason.FIELD_CONFLICT, message=str(error), retry_seconds=error.retry_seconds
        )
    if (reason := OUR_REFUSALS.get(type(error))) is not None:
        message = str(error)[:WORDS_LENGTH_MAX]
        return Blocked(reason=reason, message=message, retry_seconds=REFUSED_SECONDS)
    reason = Reason.FORBIDDEN if isinstance(error, Forbidden) else Reason.API_SERVER_REFUSED
    message = str(error)[:WORDS_LENGTH_MAX]
    return Blocked(reason=reason, message=message, retry_seconds=TOLD_SECONDS_MIN)
