"""Jobs of snapshots: whether there is one, how far it is, and making one. The only exit for them to the API server."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

from rollout_api.conditions import Reason
from rollout_api.v1alpha1.common import RuntimeRef
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.controller.queue import Key
from rollout_operator.errors import ChildRefused, Forbidden, Refused
from rollout_operator.jobs.jobs import JobOwner, Jobs
from rollout_operator.jobs.work import Work
from rollout_operator.kube.client import KubeClient
from rollout_operator.run.index.references import SNAPSHOT
from rollout_operator.run.permitted import build_allowances
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.preconditions.allowed import check_namespace
from rollout_operator.run.plan.preconditions.checks import parse_runtime
from rollout_operator.run.render.inputs import Manifest, Platform
from rollout_operator.snapshot.errand import Errand, build_account, build_job
from rollout_operator.snapshot.permitted import check_errand

log = logging.getLogger(__name__)

WORDS_MAX = 600
ReasonMessage = tuple[Reason, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errands:
    """How Jobs of snapshots are looked for and made."""

    client: KubeClient
    store: Store
    platform: Callable[[], Platform]

    def find_runtime(self, wanted: RuntimeRef, namespace: str) -> RuntimeSpec | ReasonMessage:
        """The runtime that reaches the store, or why there is none."""
        inside = wanted.kind == "RolloutRuntime"
        key = Key(namespace=namespace if inside else "", name=wanted.name, kind=wanted.kind)
        found = self.store.find(key)
        if found is None:
            return Reason.RUNTIME_NOT_FOUND, f"{wanted.kind} {wanted.name!r} does not exist"
        parsed = parse_runtime(json.loads(found.spec), wanted.kind)
        if isinstance(parsed, Blocked):
            return parsed.reason, parsed.message
        gate = check_namespace(parsed, wanted.name, namespace)
        return parsed if gate is None else (gate.reason, gate.message)

    async def look(self, stored: Stored, job: str) -> Work | None:
        """How far a Job of the snapshot is; None where there is none. Raises KubeError."""
        owner = JobOwner(kind=SNAPSHOT, namespace=stored.key.namespace, uid=stored.uid)
        return await Jobs(client=self.client).look(owner, job)

    async def start(self, errand: Errand) -> ReasonMessage | None:
        """Make account and Job; what refuses them, in words. Raises KubeError for what passes."""
        try:
            for manifest in (build_account(errand), build_job(errand)):
                if manifest is not None:
                    await self._create(manifest, errand)
        except (ChildRefused, Forbidden, Refused) as error:
            log.warning("no job name=%s/%s error=%s", errand.namespace, errand.job, error)
            return _reason_of(error), str(error)[:WORDS_MAX]
        return None

    async def _create(self, manifest: Manifest, errand: Errand) -> None:
        """Look at it, and make it."""
        check_errand(
            manifest,
            name=errand.name,
            namespace=errand.namespace,
            uid=errand.uid,
            allowances=build_allowances(errand.runtime),
        )
        await Jobs(client=self.client).create(manifest)


def _reason_of(error: ChildRefused | Forbidden | Refused) -> Reason:
    if isinstance(error, ChildRefused):
        return Reason.CHILD_REFUSED
    return Reason.FORBIDDEN if isinstance(error, Forbidden) else Reason.API_SERVER_REFUSED
