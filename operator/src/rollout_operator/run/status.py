"""Says what was decided: events, then the status, written no more often than somebody needs.

Nothing here decides what to say; the status is bound to the very object that was looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout_api import API_VERSION, names
from rollout_api.conditions import Reason
from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.errors import NotFound, Outdated
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import resource_of
from rollout_operator.run.events import Poster
from rollout_operator.run.plan.attempts import is_finished
from rollout_operator.run.plan.model import EventSpec, Observed, Plan
from rollout_operator.run.plan.status.outdated import plan_outdated

log = logging.getLogger(__name__)

COUNTS_SECONDS = 1.0
"""Counts of pods alone are written no more often than this; conditions are written at once."""


@dataclass(slots=True, kw_only=True)
class StatusWriter:
    """Remembers when it wrote a run's status last."""

    client: KubeClient
    store: Store
    queue: KeyQueue
    poster: Poster
    clocks: Clocks = CLOCKS
    _wrote_at: dict[Key, float] = field(default_factory=dict)

    async def say(self, stored: Stored, observed: Observed, plan: Plan) -> None:
        """The events and the status of a plan. Raises KubeError."""
        if plan.status is None:
            return
        if not says_more(observed, plan.status) and not _is_last_word(observed):
            wait = self._wrote_at.get(stored.key, 0.0) + COUNTS_SECONDS - self.clocks.monotonic()
            if wait > 0:
                self.queue.put_later(stored.key, wait)
                return
        attempt = int(plan.status.get("attempt", 0))
        for note in plan.notes:  # before the status, which would make them old news
            await self.poster.post(observed, attempt, note)
        try:
            await self.send(stored, plan.status)
        except Outdated as error:
            await self._say_outdated(stored, observed, error)
            raise
        self._wrote_at[stored.key] = self.clocks.monotonic()

    async def _say_outdated(self, stored: Stored, observed: Observed, error: Outdated) -> None:
        """What the definitions that are there have room for."""
        status = plan_outdated(observed, error.message, self.clocks.now())
        if status is None:
            return
        log.error("definitions are outdated error=%s", error)
        note = EventSpec(
            type="Warning", reason=Reason.CRD_OUTDATED, message=error.message, key="fields"
        )
        await self.poster.post(observed, observed.status.attempt, note)
        await self.send(stored, status)

    async def send(self, stored: Stored, status: Mapping[str, Any]) -> None:
        """Write a status of any kind of ours; of an object that is gone there is nothing to say."""
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

    def forget(self, key: Key) -> None:
        """The object is gone."""
        self._wrote_at.pop(key, None)


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


def _is_last_word(observed: Observed) -> bool:
    """Whether no pod is left to be counted: no later write would say it."""
    return is_finished(observed) and not observed.pods
