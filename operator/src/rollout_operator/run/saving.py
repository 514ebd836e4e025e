"""Makes the RolloutSnapshots that a run's schedules ask for, and deletes those that they no longer keep. Decides nothing.

What fails here stops nothing else of the run: it is said in a condition, and tried again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from rollout_api import API_VERSION, names
from rollout_api.conditions import Reason
from rollout_operator.cache.store import Store
from rollout_operator.errors import Conflict, Forbidden, KubeError, Terminating
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import SNAPSHOTS
from rollout_operator.run.index.references import SNAPSHOT
from rollout_operator.run.plan.model import Blocked, MadeSnapshot, Observed, Plan, SnapshotOrder

log = logging.getLogger(__name__)

AGAIN_SECONDS = 30.0
WORDS_MAX = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Saver:
    """How snapshots of schedules are made and deleted."""

    client: KubeClient
    store: Store

    async def save(self, observed: Observed, plan: Plan) -> Blocked | None:
        """Make and delete what the plan says; why that could not be. Raises Terminating."""
        try:
            for order in plan.makes:
                await self._make(observed, order)
            for one in plan.drops:
                await self._drop(observed, one)
        except Terminating:
            raise
        except KubeError as error:
            log.warning("snapshots of schedules run=%s error=%s", observed.name, error)
            reason = Reason.FORBIDDEN if isinstance(error, Forbidden) else Reason.API_SERVER_REFUSED
            message = str(error)[:WORDS_MAX]
            return Blocked(reason=reason, message=message, retry_seconds=AGAIN_SECONDS)
        return None

    async def _make(self, observed: Observed, order: SnapshotOrder) -> None:
        """One of its name that is there has been made before."""
        body = build_snapshot(observed, order)
        try:
            made = await self.client.create(body, SNAPSHOTS, manager=names.MANAGER_CHILDREN)
        except Conflict:
            log.info("snapshot is there already name=%s", order.name)
            return
        log.info("snapshot made name=%s run=%s", order.name, observed.name)
        self.store.put_object(SNAPSHOT, made)

    async def _drop(self, observed: Observed, one: MadeSnapshot) -> None:
        """As it was seen; one that has changed since is looked at again."""
        try:
            await self.client.delete(
                SNAPSHOTS,
                observed.namespace,
                one.name,
                uid=one.uid,
                resource_version=str(one.version),
            )
        except Conflict:
            log.info("snapshot has changed and is not deleted yet name=%s", one.name)
            return
        log.info("snapshot deleted name=%s run=%s", one.name, observed.name)


def build_snapshot(observed: Observed, order: SnapshotOrder) -> dict[str, Any]:
    """The object: of no owner, since it outlives its run; its bytes go with it."""
    run = {"name": observed.name, "uid": observed.uid}
    wanted = {} if order.step is None else {"step": order.step}
    return {
        "apiVersion": API_VERSION,
        "kind": SNAPSHOT,
        "metadata": {
            "name": order.name,
            "namespace": observed.namespace,
            "labels": {
                names.LABEL_RUN: observed.name,
                names.LABEL_RUN_UID: observed.uid,
                names.LABEL_SCHEDULE: order.schedule,
                names.LABEL_PART_OF: "rollout",
                names.LABEL_MANAGED_BY: names.MANAGER_CHILDREN,
            },
        },
        "spec": {
            "source": {"run": {**run, **wanted}},
            "deletionPolicy": "Delete",
            "deadlineSeconds": order.deadline_seconds,
            "description": order.description,
        },
    }
