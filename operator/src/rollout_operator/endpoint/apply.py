"""Makes an endpoint's children what a plan says: the only place of this package that writes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from rollout_api import names
from rollout_operator.apply.apply_set import ApplySet
from rollout_operator.cache.children import Child, is_drifted
from rollout_operator.cache.store import Store
from rollout_operator.endpoint.history import build_history, needs_record
from rollout_operator.endpoint.inputs import Manifest, ServerInputs
from rollout_operator.endpoint.model import EndpointPlan, EndpointSeen, speaks_tls
from rollout_operator.endpoint.permitted import EndpointPermit
from rollout_operator.endpoint.render.children import (
    RevisionTemplate,
    build_awake,
    build_baseline,
    build_candidate,
    build_deployment,
    build_live,
    build_service,
    build_surroundings,
)
from rollout_operator.endpoint.render.holder import build_holder
from rollout_operator.endpoint.render.traffic import build_traffic
from rollout_operator.endpoint.render.trials import (
    build_canary,
    build_measuring,
    build_watching,
)
from rollout_operator.endpoint.trial import Canary
from rollout_operator.jobs.jobs import Jobs
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.managed_fields import seal
from rollout_operator.kube.resources import AUTOSCALERS, OPTIONAL_CHILDREN
from rollout_operator.run.permitted import build_allowances

log = logging.getLogger(__name__)

DEPLOYMENT = "Deployment"
TRAFFIC = frozenset(one.kind for one in (AUTOSCALERS, *OPTIONAL_CHILDREN))
"""Kinds of autoscalers and routes: those that are not wanted go."""


@dataclass(slots=True, kw_only=True)
class EndpointApplier:
    """Owns the exit for objects of endpoints."""

    client: KubeClient
    store: Store
    _writer: ApplySet = field(init=False)

    def __post_init__(self) -> None:
        """None of these children says what others are made of: what is the endpoint's is believed."""
        self._writer = ApplySet(client=self.client, store=self.store, believes=lambda _: True)

    async def act(
        self,
        seen: EndpointSeen,
        plan: EndpointPlan,
        inputs: ServerInputs | None,
        revision: RevisionTemplate | None,
    ) -> None:
        """Do what is planned. Raises KubeError, FieldConflict, ChildRefused."""
        if inputs is not None and revision is not None and plan.keep:
            await self._make(seen, plan, inputs, revision)
        if plan.fail and seen.target in seen.servers:
            await self._mark(seen, plan.fail, 0)
        if plan.revive:
            await self._mark(seen, None, plan.replicas)
        for name in plan.scale:
            await self._writer.merge({"spec": {"replicas": plan.replicas}}, _server(seen, name))
        for name in plan.remove:
            log.info("servers removed endpoint=%s/%s revision=%s", seen.namespace, seen.name, name)
            await self._writer.delete(_server(seen, name))
        for kind, name in _left_over(seen, plan):
            if (found := seen.children.get((kind, name))) is not None and not found.deleting:
                await self._writer.delete(found)

    async def _make(
        self,
        seen: EndpointSeen,
        plan: EndpointPlan,
        inputs: ServerInputs,
        revision: RevisionTemplate,
    ) -> None:
        permit = EndpointPermit(
            endpoint=seen.name,
            namespace=seen.namespace,
            uid=seen.uid,
            allowances=build_allowances(inputs.runtime),
        )
        for manifest in _build(seen, plan, inputs, revision):
            await self._ensure(manifest, seen, permit)
        if plan.asks:
            await self._ask(seen, plan, inputs, permit)

    async def _ensure(self, manifest: Manifest, seen: EndpointSeen, permit: EndpointPermit) -> None:
        place = (manifest["kind"], manifest["metadata"]["name"])
        child = seen.children.get(place)
        if child is not None and child.deleting:
            return
        sealed = seal(manifest)
        digest = sealed["metadata"]["annotations"][names.ANNOTATION_APPLIED]
        same = child is not None and child.digest == digest
        if child is None or not same or is_drifted(child, self._writer.accepted):
            await self._writer.apply(sealed, child, permit, repair=same)

    async def _ask(
        self, seen: EndpointSeen, plan: EndpointPlan, inputs: ServerInputs, permit: EndpointPermit
    ) -> None:
        assert plan.trial is not None
        build = build_watching if isinstance(plan.trial, Canary) else build_measuring
        manifest = build(inputs, plan.trial.job)
        permit.check(manifest)
        log.info(
            "candidate tried endpoint=%s/%s job=%s", permit.namespace, seen.name, plan.trial.job
        )
        await Jobs(client=self.client).create(manifest)

    async def _mark(self, seen: EndpointSeen, why: str | None, replicas: int) -> None:
        """No servers any more, and a mark that it was tried; or (``why`` None) servers again, without the mark.

        What was applied last says as many servers as are wanted, and is not applied once more.
        """
        annotations = {names.ANNOTATION_FAILED: why}
        changes = {"metadata": {"annotations": annotations}, "spec": {"replicas": replicas}}
        await self._writer.merge(changes, _server(seen, seen.target))


def _build(
    seen: EndpointSeen, plan: EndpointPlan, inputs: ServerInputs, revision: RevisionTemplate
) -> Iterator[Manifest]:
    """What shall be there, addresses after what answers there."""
    yield from build_surroundings(inputs)
    if inputs.model.live is not None:
        yield build_live(inputs, inputs.model.live)
    if plan.deploy and needs_record(seen):
        yield build_history(inputs, revision.name, seen)
    if plan.deploy:
        yield build_deployment(inputs, revision, plan.replicas)
    yield from _build_addresses(seen, plan, inputs)
    if plan.trial is not None:
        yield build_candidate(inputs, revision.name)
    canary = plan.trial if isinstance(plan.trial, Canary) else None
    if canary is not None:
        yield build_baseline(inputs, plan.serves)
    asks = canary is not None and (plan.asks or canary.work is not None)
    made = seen.traffic - seen.unserved
    yield from (one for one in build_traffic(inputs) if one["kind"] in made)
    if asks or ("ConfigMap", names.canary_name(seen.name)) in seen.children:
        percent = canary.percent if canary is not None and asks else 0
        yield build_canary(inputs, revision.name, percent)


def _build_addresses(
    seen: EndpointSeen, plan: EndpointPlan, inputs: ServerInputs
) -> Iterator[Manifest]:
    """Where clients ask, and whoever holds their requests with the address that it sends them on to."""
    if plan.holds:
        yield build_holder(inputs)
    if not plan.serves:
        return
    if plan.holds:
        yield build_awake(inputs, plan.serves)
    serves = names.holder_name(seen.name) if plan.held else plan.serves
    yield build_service(inputs, serves, tls=speaks_tls(seen, plan.serves))


def _left_over(seen: EndpointSeen, plan: EndpointPlan) -> Iterator[tuple[str, str]]:
    """What is not wanted any more.

    Who holds requests where there are servers for good; addresses of trials that nobody goes through: what was a candidate is
    not to be reached; autoscalers and routes of before.
    """
    if plan.keep and not plan.holds:
        yield "Deployment", names.holder_name(seen.name)
        yield "Service", names.awake_name(seen.name)
    if plan.keep and not seen.follows and seen.servers.keys() <= {seen.target}:
        yield "ConfigMap", names.live_name(seen.name)  # no pod mounts it any more
    if plan.trial is None:
        yield "Service", names.candidate_name(seen.name)
    if not isinstance(plan.trial, Canary):
        yield "Service", names.baseline_name(seen.name)
    if seen.spec is not None:
        for kind in TRAFFIC - seen.traffic:
            yield kind, names.server_name(seen.name)


def _server(seen: EndpointSeen, revision: str) -> Child:
    return seen.children[DEPLOYMENT, revision]
