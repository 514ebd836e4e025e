"""Posts events of runs, each once: the name of an event says what it is about."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Protocol

from rollout_api import names
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.errors import Conflict, KubeError, Terminating
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import EVENTS
from rollout_operator.run.plan.model import EventSpec

log = logging.getLogger(__name__)

NOTE_LENGTH_MAX = 1000


class Regarded(Protocol):
    """The object that an event is about."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def namespace(self) -> str:
        """Its namespace, where the event goes."""
        ...

    @property
    def uid(self) -> str:
        """Its UID."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Poster:
    """Creates ``events.k8s.io/v1`` events; one that cannot be posted is logged, never retried."""

    client: KubeClient
    instance: str
    clocks: Clocks = CLOCKS

    async def post(
        self, observed: Regarded, attempt: int, note: EventSpec, kind: str = "RolloutRun"
    ) -> None:
        """Post one event about a run, or about another object of ours."""
        try:
            await self.client.create(
                build_event(observed, attempt, note, self.instance, self.clocks.now(), kind),
                EVENTS,
                manager=names.MANAGER_CHILDREN,
            )
        except (Conflict, Terminating):
            return
        except KubeError as error:
            log.warning("event not posted kind=%s name=%s error=%s", kind, observed.name, error)


def build_event(
    observed: Regarded,
    attempt: int,
    note: EventSpec,
    instance: str,
    now: datetime,
    kind: str = "RolloutRun",
) -> dict[str, object]:
    """The event; its name is made of run, attempt, reason and words, so that it is there once."""
    words = f"{observed.uid}/{attempt}/{note.reason.value}/{note.key or note.message}"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{observed.name[:200]}.{sha256(words.encode()).hexdigest()[:16]}",
            "namespace": observed.namespace,
        },
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": note.type,
        "reason": note.reason.value,
        "note": note.message[:NOTE_LENGTH_MAX],
        "action": "Reconcile",
        "regarding": {
            "apiVersion": "rollout.dev/v1alpha1",
            "kind": kind,
            "name": observed.name,
            "namespace": observed.namespace,
            "uid": observed.uid,
        },
        "reportingController": "rollout.dev/operator",
        "reportingInstance": instance[:128],
    }
