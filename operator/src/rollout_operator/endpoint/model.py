"""What is known of an endpoint, and what is to be done for it: data between observing, planning and acting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollout_api import names
from rollout_api.checks.inference.endpoint import follows
from rollout_api.conditions import Reason
from rollout_api.serving import LiveVersion
from rollout_api.v1alpha1.inference.endpoint import EndpointSpec, EndpointStatus
from rollout_operator.cache.children import Child, Deployed
from rollout_operator.controller.conditions import Status
from rollout_operator.endpoint.trial import PASSED, Canary, Trial, TrialVerdict
from rollout_operator.kube.resources import (
    AUTOSCALERS,
    HTTP_ROUTES,
    OPTIONAL_CHILDREN,
    SCALED_OBJECTS,
)
from rollout_operator.run.plan.model import Blocked, EventSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSnapshot:
    """The weights of a snapshot: its ``id`` and the place of objects that has it.

    ``trusted``: signers that are believed; ``foreign``: those of them that are other installations.
    """

    id: str
    place: str
    trusted: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLive:
    """What a run at work has saved last. ``place``: of all that this run saves, ``version``: the newest of it.

    ``chat_template``: what the run renders chats with; None: the model's own. ``halts``: why nothing newer comes; None: the run is at work.
    """

    run: str
    place: str
    version: LiveVersion
    chat_template: str | None = None
    halts: tuple[Reason, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What the servers of a revision are told to serve. ``revision`` is that of a hub's model.

    ``digest``: of the object that a run has handed on, or of the manifest of ``snapshot``, ``blake3:<64 hex>``; empty:
    servers find it out. ``words``: what a person calls it; empty: its ``uri``. ``live``: its weights are those of a run at work.
    """

    uri: str
    revision: str | None = None
    snapshot: ServedSnapshot | None = None
    live: ServedLive | None = None
    digest: str = ""
    words: str = ""

    def __str__(self) -> str:
        """For people."""
        if self.words:
            return f"{self.words} ({self.digest})" if self.digest else self.words
        return f"{self.uri}@{self.revision}" if self.revision else self.uri


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSeen:
    """One endpoint and its children. ``target`` is the revision that its spec comes to; empty where ``gate`` keeps it from any.

    ``gate``: what a person must mend before anything is made of the spec. ``lacks_model``: the gate is that there is no model,
    or not any more; everything else is as it should be. ``selects``: the revision that the Service sends requests to; empty
    without a Service. ``image`` and ``model``: of the target. ``trouble``: what its pods say that do not come up.
    ``held``: whether the Service sends requests to the pod that holds them.
    ``served``: optional kinds that the cluster has.
    ``trials``: what is to be found out of the target before it may serve, in order. ``history``: what is on record of revisions,
    by their names; only where the target is one that was gone back to, or has no servers yet.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    spec: EndpointSpec | None
    status: EndpointStatus
    gate: Blocked | None = None
    lacks_model: bool = False
    target: str = ""
    image: str = ""
    model: ServedModel | None = None
    children: Mapping[tuple[str, str], Child] = field(default_factory=dict)
    selects: str = ""
    held: bool = False
    trouble: str = ""
    trials: tuple[Trial | Canary, ...] = ()
    history: Mapping[str, str] = field(default_factory=dict)
    served: frozenset[str] = frozenset()

    @property
    def rollback(self) -> str:
        """The revision that is gone back to; empty for none."""
        return (self.spec.rollback_to or "") if self.spec is not None else ""

    @property
    def follows(self) -> bool:
        """Whether servers are to take what a run at work saves."""
        return self.spec is not None and follows(self.spec.model)

    @property
    def suspend(self) -> bool:
        """Whether no servers are wanted."""
        return self.spec is not None and self.spec.suspend

    @property
    def replicas(self) -> int:
        """Servers wanted; of what an autoscaler says no more and no fewer than its bounds, which may have changed since."""
        if self.spec is None or self.spec.suspend:
            return 0
        wanted, scaling = self.spec.replicas, self.spec.scaling
        if scaling is None:
            return wanted
        rests = self.held and self.target in ("", self.selects)
        fewest = scaling.min_replicas or (0 if rests else 1)
        return min(max(wanted, fewest), scaling.max_replicas)

    @property
    def may_rest(self) -> bool:
        """Whether there may be no servers while nobody asks, so that somebody has to hold requests."""
        if self.spec is None or self.spec.suspend or self.spec.scaling is None:
            return False
        return self.spec.scaling.min_replicas == 0

    @property
    def holder(self) -> Deployed | None:
        """Whoever holds requests; None where there is nobody."""
        child = self.children.get(("Deployment", names.holder_name(self.name)))
        return child.deployed if child is not None and not child.deleting else None

    @property
    def traffic(self) -> frozenset[str]:
        """Kinds of autoscaler and route that are wanted, whether the cluster has them or not."""
        if self.spec is None or self.spec.suspend:
            return frozenset()
        scaling, route = self.spec.scaling, self.spec.route
        scaled = (
            [] if scaling is None else [AUTOSCALERS if scaling.keda is None else SCALED_OBJECTS]
        )
        return frozenset(one.kind for one in (*scaled, *([HTTP_ROUTES] if route else [])))

    @property
    def unserved(self) -> frozenset[str]:
        """Those of them that the cluster does not have."""
        return self.traffic & {one.kind for one in OPTIONAL_CHILDREN} - self.served

    @property
    def servers(self) -> dict[str, Deployed]:
        """The Deployments by their revisions, without those that are going."""
        found = (one.deployed for one in self.children.values() if not one.deleting)
        holder = names.holder_name(self.name)
        return {one.revision: one for one in found if one is not None and one.revision != holder}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPlan:
    """What to do, in the order of the fields; ``status`` None writes nothing.

    ``keep``: the surroundings, and the Service, which selects ``serves`` where that is one. ``deploy``: the target, with ``replicas``.
    ``holds``: there is somebody who holds requests, ``held``: the Service sends them there.
    ``trial``: what the target is about to go through, ``asks``: its Job is made. ``verdict``: what is known of that, with the
    records of all that it has gone through.
    ``fail``: why the target is given up; ``revive``: that it was given up is taken back. ``scale`` and ``remove``: Deployments by name.
    """

    keep: bool = False
    serves: str = ""
    holds: bool = False
    held: bool = False
    deploy: bool = False
    replicas: int = 0
    trial: Trial | Canary | None = None
    asks: bool = False
    verdict: TrialVerdict = PASSED
    fail: str = ""
    revive: bool = False
    scale: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    notes: tuple[EventSpec, ...] = ()
    status: Status | None = None
    requeue_seconds: float | None = None


def speaks_tls(seen: EndpointSeen, revision: str) -> bool:
    """Whether the servers of a revision do, as they are; of one that has none yet, as the spec says."""
    found = seen.servers.get(revision)
    wanted = seen.spec is not None and seen.spec.tls is not None
    return found.tls if found is not None else wanted
