"""One RolloutSweep, from what is known to what shall be: observe, plan, make and stop runs, say so."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollout_api import names
from rollout_api.checks import check_spec
from rollout_api.checks.sweeps.sweep import find_fault
from rollout_api.conditions import Reason
from rollout_operator.cache.facts import SWEEP
from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.controller.backoff import asked_seconds
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.errors import KubeError, Terminating
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import RUNS, SNAPSHOTS, Resource
from rollout_operator.other_kinds import Send
from rollout_operator.run.controller import FAILURES_TOLD_MAX, PEOPLE_MEND, gate_of
from rollout_operator.run.events import Poster
from rollout_operator.run.index.references import RUN
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.preconditions.checks import CLUSTER
from rollout_operator.sweep.model import RunOrder, SweepActs, SweepSeen, SweptRun
from rollout_operator.sweep.observe import HELD, STOPPED, look
from rollout_operator.sweep.plan import plan_acts
from rollout_operator.sweep.render import build_run, build_snapshot, check_made
from rollout_operator.sweep.status import plan_status

log = logging.getLogger(__name__)

INVALID_SECONDS = 120.0
"""Until a run that could not be made is tried again: the rules may be another release's then."""


@dataclass(slots=True, kw_only=True)
class SweepController:
    """Everything that a reconcile uses."""

    client: KubeClient
    store: Store
    queue: KeyQueue
    send: Send
    poster: Poster
    clocks: Clocks = CLOCKS
    kind: str = SWEEP

    async def reconcile(self, key: Key) -> float | None:
        """Work on one key. Raises KubeError for what the queue shall try again."""
        stored = self.store.find(key)
        if stored is None:
            self.queue.forget(key)
            return None
        if stored.deleting:
            return None
        seen = look(stored, self.store)
        try:
            gate = await self._act(seen, plan_acts(seen))
        except Terminating:
            return None
        except PEOPLE_MEND as error:
            return await self._tell(stored, error)
        except KubeError as error:
            if self.queue.failures(key) >= FAILURES_TOLD_MAX:
                return await self._tell(stored, error)
            raise
        again = await self._say(stored, gate)
        self.queue.forgive(key)
        return again

    async def _act(self, seen: SweepSeen, acts: SweepActs) -> Blocked | None:
        """Losers first: they hold the devices that others wait for. Why a run could not be made, where one could not."""
        for run in acts.stops:
            labels = {names.LABEL_SWEEP_OUTCOME: STOPPED, names.LABEL_SWEEP_SUSPENDED: None}
            await self._set_suspended(seen, run, labels, suspended=True)
        for run in acts.holds:
            await self._set_suspended(
                seen, run, {names.LABEL_SWEEP_SUSPENDED: HELD}, suspended=True
            )
        for run in acts.resumes:
            await self._set_suspended(
                seen, run, {names.LABEL_SWEEP_SUSPENDED: None}, suspended=False
            )
        for fork in acts.saves:
            await self._create(build_snapshot(seen, fork), SNAPSHOTS, seen)
        for order in acts.makes:
            if (gate := await self._make(seen, order)) is not None:
                return gate
        return None

    async def _make(self, seen: SweepSeen, order: RunOrder) -> Blocked | None:
        assert seen.spec is not None
        problem = find_fault(seen.spec, seen.template, order.values, CLUSTER, check_spec)
        if problem is not None:
            message = f"RolloutRun {order.name} is not made: {problem}"
            return Blocked(
                reason=Reason.INVALID_SPEC, message=message, retry_seconds=INVALID_SECONDS
            )
        await self._create(build_run(seen, order), RUNS, seen)
        return None

    async def _create(self, manifest: dict[str, Any], resource: Resource, seen: SweepSeen) -> None:
        """One that is there already is looked at again first. Raises Conflict."""
        check_made(manifest, seen)
        made = await self.client.create(manifest, resource, manager=names.MANAGER_CHILDREN)
        name = manifest["metadata"]["name"]
        log.info("made kind=%s name=%s/%s", resource.kind, seen.namespace, name)
        self.store.put_object(resource.kind, made)

    async def _set_suspended(
        self, seen: SweepSeen, run: SweptRun, labels: Mapping[str, str | None], *, suspended: bool
    ) -> None:
        """As it was seen: one that has changed since is looked at again. The labels, in the same write, say why."""
        bound = {"uid": run.uid, "resourceVersion": str(run.version), "labels": dict(labels)}
        changes: dict[str, Any] = {"metadata": bound, "spec": {"suspend": suspended}}
        answer = await self.client.merge(
            changes, RUNS, seen.namespace, run.name, manager=names.MANAGER_CHILDREN
        )
        done = "suspended" if suspended else "resumed"
        log.info("run %s run=%s/%s sweep=%s", done, seen.namespace, run.name, seen.name)
        self.store.put_object(RUN, answer)

    async def _say(self, stored: Stored, gate: Blocked | None) -> float | None:
        seen = replace(look(stored, self.store), gate=gate)
        said = plan_status(seen, self.clocks.now())
        if said.status is not None:
            await self.send(stored, said.status)
        for note in said.notes:  # after the status: what is not written down is not decided
            await self.poster.post(seen, 0, note, SWEEP)
        return said.requeue_seconds

    async def _tell(self, stored: Stored, error: Exception) -> None:
        """Say in the status what a person must mend, and try again later."""
        gate = gate_of(error)
        await self._say(stored, gate)
        wait = self.queue.retry(stored.key, gate.retry_seconds, asked_seconds(error))
        log.warning(
            "sweep blocked sweep=%s/%s reason=%s retry_seconds=%.0f error=%s",
            stored.key.namespace,
            stored.key.name,
            gate.reason,
            wait,
            error,
        )
