"""One key, from what is known to what shall be: observe, plan, apply, say so.

Every failure is named. What a person must mend is said in the status and tried again with growing
pauses; what passes by itself is tried again quietly. Nothing here decides anything about a run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from rollout_api import API_VERSION, names
from rollout_api.conditions import Reason
from rollout_api.live import live_part
from rollout_operator.applying import Applier
from rollout_operator.coordinator import Coordinators
from rollout_operator.desired.inputs import Inputs
from rollout_operator.errors import (
    CoordinatorUnreachable,
    FieldConflict,
    Forbidden,
    KubeError,
    NotFound,
    NotLeader,
    Outdated,
    Refused,
    Terminating,
    Unavailable,
)
from rollout_operator.events import Poster
from rollout_operator.keys import Key, KeyQueue
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import resource_of
from rollout_operator.kueue.keeper import AGAIN_SECONDS, Keeper
from rollout_operator.observing import Observer
from rollout_operator.planning.model import Gate, Note, Observed, Plan
from rollout_operator.planning.others import plan_other
from rollout_operator.planning.outdated import plan_outdated
from rollout_operator.planning.plan import plan_run
from rollout_operator.store import Store
from rollout_operator.stored import Stored

log = logging.getLogger(__name__)

CONTROLLER = "rollout.dev/operator"
UNREACHABLE_SECONDS = 15.0
FAILURES_TOLD_MAX = 5
TOLD_SECONDS_MIN = 10.0
ASKED_SECONDS_MAX = 300.0
WORDS_LENGTH_MAX = 600
NOT_LEADER_SECONDS = 2.0
COUNTS_SECONDS = 1.0
"""Counts of pods alone are written no more often than this; conditions are written at once."""
FOR_RUNTIME = ("RuntimeNotFound", "InvalidSpec", "CeilingExceeded")
FOR_RUN = ("WaitingForRun", "ReferenceNotFound")
FOR_QUEUE = (Reason.KUEUE_NOT_INSTALLED.value,)


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Everything that a reconcile uses."""

    client: KubeClient
    store: Store
    queue: KeyQueue
    observer: Observer
    applier: Applier
    coordinators: Coordinators
    poster: Poster
    keeper: Keeper
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))
    _wrote_at: dict[Key, float] = field(default_factory=dict)

    async def reconcile(self, key: Key) -> None:
        """Work on one key. Raises KubeError for what the queue shall try again."""
        stored = self.store.find(key)
        await self._release_quota(key, stored)
        if stored is None:
            self._wrote_at.pop(key, None)
        elif stored.deleting:
            self.applier.forget(stored.uid)
        elif key.kind != "RolloutRun":
            await self._reconcile_other(stored)
        elif _is_ours(json.loads(stored.spec)):
            await self._reconcile_run(stored)

    async def _release_quota(self, key: Key, stored: Stored | None) -> None:
        """Of runs that are gone, or going: the Workload stays until the last pod is gone."""
        living = "" if stored is None or stored.deleting else stored.uid
        if not await self.keeper.release_orphans(key, living):
            self.queue.put_later(key, AGAIN_SECONDS)
        elif stored is None:
            self.queue.forget(key)

    async def _reconcile_run(self, stored: Stored) -> None:
        observed = self.observer.look(stored)
        now = self.clock()
        inputs: Inputs | None = None
        try:
            observed = await self.observer.check(observed, stored)
            plan = plan_run(observed, now)
            if plan.wanted is not None and plan.wanted.record is None:
                inputs = await self.observer.build_inputs(observed, stored)
            if plan.delete_run:
                await self._delete_run(stored)
                return
            plan = await self._act(observed, plan, inputs, now)
        except Terminating:
            return
        except (FieldConflict, Forbidden, Refused) as error:
            await self._tell(observed, stored, error)
            return
        except KubeError as error:
            if self.queue.failures(stored.key) >= FAILURES_TOLD_MAX:
                await self._tell(observed, stored, error)
                return
            raise
        await self._write_status(stored, observed, plan)
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
        if plan.wanted is not None:
            name = await self.applier.ensure(observed, plan.wanted, lambda: _given(inputs), now)
            if plan.wanted.record is None and plan.status is not None:
                plan = replace(plan, status={**plan.status, "configuration": name})
        if plan.stop_coordinator:
            await self._ask(observed, self.coordinators.stop(observed, "Suspended"))
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

    async def _send_settings(self, observed: Observed) -> bool:
        assert observed.spec is not None
        live = live_part(observed.spec).model_copy(
            update={"progress_seconds": self.observer.progress_seconds()}
        )
        body = {
            "generation": observed.generation,
            "live": live.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        return await self._ask(observed, self.coordinators.send_settings(observed, body))

    async def _ask(self, observed: Observed, call: Any) -> bool:
        """Whether the coordinator did as asked; one that does not answer is left alone for a while."""
        try:
            await call
        except CoordinatorUnreachable as error:
            log.warning("coordinator not reached run=%s error=%s", observed.name, error)
            self.observer.leave_alone(observed.uid, UNREACHABLE_SECONDS)
            return False
        return True

    async def _tell(self, observed: Observed, stored: Stored, error: Exception) -> None:
        """Say in the status what a person must mend, and try again later."""
        gate = _gate_of(error)
        told = replace(observed, blocked=gate, gate=observed.gate or gate)
        plan = plan_run(told, self.clock())
        await self._write_status(stored, observed, plan)
        wait = self.queue.retry(stored.key, gate.retry_seconds, _asked_seconds(error))
        log.warning(
            "run blocked run=%s/%s reason=%s retry_seconds=%.0f error=%s",
            observed.namespace,
            observed.name,
            gate.reason,
            wait,
            error,
        )

    async def _write_status(self, stored: Stored, observed: Observed, plan: Plan) -> None:
        if plan.status is None:
            return
        if not says_more(observed, plan.status):
            wait = self._wrote_at.get(stored.key, 0.0) + COUNTS_SECONDS - time.monotonic()
            if wait > 0:
                self.queue.put_later(stored.key, wait)
                return
        attempt = int(plan.status.get("attempt", 0))
        for note in plan.notes:  # before the status, which would make them old news
            await self.poster.post(observed, attempt, note)
        try:
            await self._send_status(stored, plan.status)
        except Outdated as error:
            await self._tell_outdated(stored, observed, error)
            raise
        self._wrote_at[stored.key] = time.monotonic()
        if _has_finished(plan.status):
            self._wake(FOR_RUN, stored.key.namespace)

    async def _tell_outdated(self, stored: Stored, observed: Observed, error: Outdated) -> None:
        """Say what the definitions that are there have room for."""
        status = plan_outdated(observed, error.message, self.clock())
        if status is None:
            return
        log.error("definitions are outdated error=%s", error)
        note = Note(
            type="Warning", reason=Reason.DEFINITIONS_OUTDATED, message=error.message, key="fields"
        )
        await self.poster.post(observed, observed.status.attempt, note)
        await self._send_status(stored, status)

    async def _send_status(self, stored: Stored, status: Mapping[str, Any]) -> None:
        key = stored.key
        meta = {"name": key.name, "uid": stored.uid, "resourceVersion": str(stored.version)}
        body = {
            "apiVersion": API_VERSION,
            "kind": key.kind,
            "metadata": meta | ({"namespace": key.namespace} if key.namespace else {}),
            "status": dict(status),
        }
        try:
            answer = await self.client.apply(
                body,
                resource_of(key.kind),
                manager=names.MANAGER_STATUS,
                force=True,
                subresource="status",
            )
        except NotFound:
            return
        self.store.put_object(key.kind, answer, notify=False)

    async def _reconcile_other(self, stored: Stored) -> None:
        status = plan_other(
            stored.key.kind,
            json.loads(stored.spec),
            stored.read_status(),
            stored.generation,
            self.clock(),
        )
        if status is not None:
            await self._send_status(stored, status)
        if stored.key.kind.endswith("Runtime"):
            self._wake(FOR_RUNTIME, stored.key.namespace)
        self.queue.forgive(stored.key)

    def _wake(self, reasons: tuple[str, ...], namespace: str) -> None:
        """Look again at runs that wait for what has just changed."""
        for key in self.store.waiting(reasons, namespace):
            self.queue.put(key)


def says_more(observed: Observed, after: Mapping[str, Any]) -> bool:
    """Whether a status differs from the one there is in more than counts and words."""
    before = {(c.type, c.status, c.reason) for c in observed.status.conditions}
    now = {(c["type"], c["status"], c["reason"]) for c in after["conditions"]}
    status = observed.status
    same = (status.observed_generation, status.attempt, status.configuration, status.start_time)
    told = tuple(
        after.get(name) for name in ("observedGeneration", "attempt", "configuration", "startTime")
    )
    learner = status.learner.incarnation if status.learner else 0
    return (before, same, learner) != (now, told, after.get("learner", {}).get("incarnation", 0))


def _has_finished(status: Mapping[str, Any]) -> bool:
    return any(c["type"] == "Finished" for c in status["conditions"])


def _given(inputs: Inputs | None) -> Inputs:
    assert inputs is not None
    return inputs


def _is_ours(spec: Mapping[str, Any]) -> bool:
    return spec.get("managedBy") in {None, CONTROLLER}


def _gate_of(error: Exception) -> Gate:
    if isinstance(error, FieldConflict):
        return Gate(
            reason=Reason.FIELD_CONFLICT, message=str(error), retry_seconds=error.retry_seconds
        )
    reason = Reason.FORBIDDEN if isinstance(error, Forbidden) else Reason.API_SERVER_REFUSED
    message = str(error)[:WORDS_LENGTH_MAX]
    return Gate(reason=reason, message=message, retry_seconds=TOLD_SECONDS_MIN)


def _asked_seconds(error: Exception) -> float:
    """How long the API server asks us to wait."""
    asked = error.retry_after_seconds if isinstance(error, Unavailable) else None
    return min(asked or 0.0, ASKED_SECONDS_MAX)


@dataclass(slots=True, kw_only=True)
class Workers:
    """Takes keys while this replica leads, and counts how it went."""

    reconciler: Reconciler
    queue: KeyQueue
    leading: asyncio.Event
    count: Callable[[str, float, float], None]

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self.leading.wait()
            key, waited = await self.queue.take()
            began = time.monotonic()
            try:
                result = await self._one(key)
            finally:
                self.queue.done(key)
            self.count(result, time.monotonic() - began, waited)

    async def _one(self, key: Key) -> str:
        try:
            await self.reconciler.reconcile(key)
        except KubeError as error:
            wait = self.queue.retry(key, asked_seconds=_asked_seconds(error))
            log.info("reconcile again key=%s seconds=%.1f error=%s", key, wait, error)
            return "retry"
        except NotLeader:
            self.queue.put_later(key, NOT_LEADER_SECONDS)
            return "not-leader"
        except Exception:
            self.queue.retry(key)
            log.exception("reconcile failed key=%s", key)
            return "error"
        return "success"
