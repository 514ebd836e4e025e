"""Writes Workloads: asks for quota, says how the run does, gives quota back once no pod is left.

Whether a pod is left is asked of the API server itself before anything is given back: what the
operator has seen may be seconds old, and a StatefulSet may be about to make one more pod.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rollout_api import GROUP, names
from rollout_operator.controller.queue import Key
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.managed_fields import controller_uid
from rollout_operator.kube.resources import PODS, STATEFUL_SETS
from rollout_operator.kueue.quota import Quota
from rollout_operator.kueue.resources import WORKLOADS
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.permitted import check_permitted
from rollout_operator.run.plan.model import ROLES, Observed, QuotaStep
from rollout_operator.run.queue.claim import build_workload
from rollout_operator.run.queue.writing import (
    Body,
    build_change,
    build_condition,
    build_let_go,
    build_requeue,
)

log = logging.getLogger(__name__)

AGAIN_SECONDS = 2.0
"""When to look again at pods that are still there."""


@dataclass(slots=True, kw_only=True)
class Keeper:
    """The only place that writes Workloads."""

    client: KubeClient
    store: RunStore
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))

    async def act(self, observed: Observed, step: QuotaStep) -> bool:
        """Do one step; False when pods are still there and it must be tried again. Raises KubeError."""
        quota = observed.quota
        if step.verb == "Ask":
            await self._ask(observed)
            return True
        assert quota is not None
        now = self.clock()
        change = (step.holds, step.reason, step.message)
        if step.verb == "Change":
            assert observed.claim is not None
            await self._write(quota, build_change(quota, observed.claim))
            return True
        if step.verb == "PodsReady":
            body = build_condition(quota, "PodsReady", change, now)
            await self._write(quota, body, subresource="status")
            return True
        if not await self._is_empty(quota):
            return False
        log.info("quota given back run=%s step=%s", observed.name, step.verb)
        if step.verb == "Requeue":
            await self._write(quota, build_requeue(quota, now), subresource="status")
        elif step.verb == "Finish":
            body = build_condition(quota, "Finished", change, now)
            await self._write(quota, body, subresource="status")
            await self._let_go(
                self.store.quota(quota.namespace, quota.run_uid) or quota, delete=False
            )
        else:
            await self._let_go(quota, delete=step.verb == "GiveUp")
        return True

    async def release_orphans(self, key: Key, living: str) -> bool:
        """Let go of Workloads whose run is gone, once its pods are; whether none is left to be done."""
        done = True
        for quota in self.store.quotas_of(key):
            if quota.run_uid == living or not quota.held:
                continue
            if self.store.pods(quota.namespace, quota.run_uid) or not await self._is_empty(quota):
                done = False
                continue
            log.info("quota of a deleted run given back run=%s uid=%s", key.name, quota.run_uid)
            await self._let_go(quota, delete=True)
        return done

    async def _ask(self, observed: Observed) -> None:
        assert observed.claim is not None
        body = build_workload(observed.name, observed.namespace, observed.uid, observed.claim)
        check_permitted(body, observed.permit())
        made = await self.client.create(body, WORKLOADS, manager=names.MANAGER_CHILDREN)
        self.store.put(WORKLOADS, made, notify=False)

    async def _write(self, quota: Quota, body: Body, *, subresource: str = "") -> None:
        answer = await self.client.merge(
            body,
            WORKLOADS,
            quota.namespace,
            quota.name,
            manager=names.MANAGER_CHILDREN,
            subresource=subresource,
        )
        self.store.put(WORKLOADS, answer, notify=False)

    async def _let_go(self, quota: Quota, *, delete: bool) -> None:
        """Delete first, then drop the finalizer: a crash between leaves what is deleted later."""
        if delete and not quota.deleting:
            await self.client.delete(
                WORKLOADS,
                quota.namespace,
                quota.name,
                uid=quota.uid,
                resource_version=str(quota.version),
            )
            return
        if quota.held:
            await self._write(quota, build_let_go(quota))

    async def _is_empty(self, quota: Quota) -> bool:
        """Whether no pod of the run is left, and nothing will make one."""
        mine = f"{names.LABEL_RUN_UID}={quota.run_uid}"
        sets = await self.client.list(STATEFUL_SETS, quota.namespace, labelSelector=mine)
        ours = [one for one in sets["items"] if _controlled_by(one, quota.run_uid)]
        if not all(is_at_rest(one) for one in ours):
            return False
        pods = await self.client.list(PODS, quota.namespace, labelSelector=mine)
        return not any(is_pod_of(quota.run, one) for one in pods["items"])


def is_pod_of(run: str, live: Body) -> bool:
    """A pod of one of the run's StatefulSets; others may bear its labels, and hold nothing."""
    workloads = {names.workload_name(run, role) for role in ROLES}
    owners = live["metadata"].get("ownerReferences") or ()
    return any(
        one.get("controller") and one["kind"] == "StatefulSet" and one["name"] in workloads
        for one in owners
    )


def _controlled_by(live: Body, uid: str) -> bool:
    return controller_uid(live["metadata"], GROUP, "RolloutRun") == uid


def is_at_rest(live: Body) -> bool:
    """A StatefulSet that has no pods, and whose controller knows that it shall have none."""
    status = live.get("status") or {}
    seen = status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
    return live["spec"].get("replicas", 1) == 0 and seen and not status.get("replicas", 0)
