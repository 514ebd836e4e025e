"""Looking for the Job of an owner of ours, and making one: what is there already is never taken over."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from rollout_api import GROUP
from rollout_api.conditions import Reason
from rollout_api.names import MANAGER_CHILDREN
from rollout_operator.errors import Conflict, NotFound
from rollout_operator.jobs.work import Work, parse_work
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.managed_fields import controller_uid
from rollout_operator.kube.resources import JOBS, PODS, resource_of
from rollout_operator.run.render.inputs import Manifest

log = logging.getLogger(__name__)

PODS_MAX = 20
"""Of one Job; more of them tell no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOwner:
    """The object that a Job is of."""

    kind: str
    namespace: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """Reads and makes Jobs; whoever calls has looked at what is made."""

    client: KubeClient

    async def look(self, owner: JobOwner, job: str) -> Work | None:
        """How far the owner's Job is; None where there is none. Raises KubeError."""
        try:
            live = await self.client.get(JOBS, owner.namespace, job)
        except NotFound:
            return None
        if controller_uid(live["metadata"], GROUP, owner.kind) != owner.uid:
            words = f"Job {job} is there and is not of this {owner.kind}; delete it"
            return Work(state="Running", reason=Reason.FIELD_CONFLICT, words=words)
        chosen = {"labelSelector": f"batch.kubernetes.io/job-name={job}", "limit": str(PODS_MAX)}
        pods = await self.client.list(PODS, owner.namespace, **chosen)
        return parse_work(live, pods["items"])

    async def create(self, manifest: Manifest) -> None:
        """Make it. One of its name that is there is left: the next look judges it. Raises KubeError."""
        resource = resource_of(manifest["kind"])
        try:
            await self.client.create(manifest, resource, manager=MANAGER_CHILDREN)
        except Conflict:
            name = manifest["metadata"]["name"]
            log.info("it is there already kind=%s name=%s", resource.kind, name)
