"""What planning takes and gives: frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from rollout_api.conditions import Reason
from rollout_api.names import Role
from rollout_api.presets import Filled
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.run_status import RunStatus
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.cache.children import Child, Node, Pod
from rollout_operator.kueue.quota import Quota
from rollout_operator.run.attempt import ScaleState
from rollout_operator.run.permitted import Allowances, Permit
from rollout_operator.run.queue.claim import Claim
from rollout_operator.run.render.inputs import RoleReference

ROLES: tuple[Role, ...] = ("coordinator", "learner", "actor")
REASONS: Mapping[str, Reason] = {reason.value: reason for reason in Reason}
REST_SECONDS = 3600.0
"""For what only watched objects decide: whoever changes one wakes the run, and all is looked at as often anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Why a run may not start (or go on). ``stalled``: a person must act."""

    reason: Reason
    message: str
    stalled: bool = True
    retry_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ends."""

    succeeded: bool
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeSnapshot:
    """A RolloutSnapshot that a schedule of the run has made.

    ``created`` is RFC 3339; ``retained``: a person keeps its bytes; ``words``: why it has failed.
    """

    name: str
    uid: str
    version: int
    schedule: str
    created: str
    state: Literal["Active", "Complete", "Failed"]
    deleting: bool = False
    retained: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOrder:
    """A RolloutSnapshot to be made: its name, the schedule it is of, why, and the bound on its making in seconds.

    ``step`` None: of the newest anchor.
    """

    name: str
    schedule: str
    description: str
    deadline_seconds: int
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One run and everything around it.

    ``settled`` is the digest of the settings that pods are made from, empty where the spec cannot be read.
    ``spec`` is resolved, None when ``gate`` is an invalid spec; ``filled`` is what its presets filled in. ``gate`` is what stands in the way of
    a start. ``blocked``: what the API server, or another writer, refuses just now.
    ``watches_nodes``: a node that is not in ``nodes`` is gone. ``namespaced``: nothing of the cluster
    is looked at. ``queue`` is empty for a run without one; ``claim`` is what it would ask for, when
    nothing else is in the way of a start; ``quota`` is what its Workload says. ``tracker`` is who would
    make the object again if it were deleted. ``children`` has no record that does not verify;
    ``unverified`` names those. Nor has it one of ours in a format that is not read: those are ``unread``,
    the newest first. ``snapshots`` are those of its schedules, the oldest first; ``unsaved``: why none can be made or
    deleted just now. ``secret_sought``: when this process last asked for the Secret of a finished run whose time is
    over; None: never. ``record_lost``: the record of the attempt that the status tells of is gone, and cannot be put back as it was.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    settled: str = ""
    suspend: bool
    spec: RolloutRunSpec | None
    status: RunStatus
    filled: tuple[Filled, ...] = ()
    runtime: RuntimeSpec = field(default_factory=RuntimeSpec)
    gate: Blocked | None = None
    blocked: Blocked | None = None
    children: Mapping[tuple[str, str], Child] = field(default_factory=dict)
    unverified: tuple[str, ...] = ()
    record_lost: bool = False
    unread: tuple[Child, ...] = ()
    pods: tuple[Pod, ...] = ()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    watches_nodes: bool = False
    namespaced: bool = False
    coordinator_reachable: bool = True
    queue: str = ""
    kueue_served: bool = False
    claim: Claim | None = None
    quota: Quota | None = None
    tracker: str = ""
    snapshots: tuple[MadeSnapshot, ...] = ()
    unsaved: Blocked | None = None
    secret_sought: datetime | None = None
    coordinator_role: RoleReference = field(default_factory=RoleReference)

    def permit(self, allowances: Allowances | None = None) -> Permit:
        """What may be sent for the run; without a record nothing but what every run may have."""
        return Permit(
            run=self.name,
            namespace=self.namespace,
            uid=self.uid,
            allowances=allowances or Allowances(),
            coordinator_role=self.coordinator_role,
        )

    def pods_of(self, role: Role) -> tuple[Pod, ...]:
        """Pods of one role, whatever attempt they are of."""
        return tuple(pod for pod in self.pods if pod.role == role)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDeletion:
    """A pod to delete; ``force`` where its node can no longer confirm."""

    pod: Pod
    why: str
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """The children that there shall be.

    ``record`` names the ConfigMap of the attempt when it exists; otherwise the attempt is rendered.
    ``without`` are recorded children that shall not (any more) be there.
    """

    attempt: int
    record: str | None
    live: Mapping[Role, ScaleState]
    without: frozenset[tuple[str, str]] = frozenset()
    deletions: tuple[PodDeletion, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSpec:
    """An event to be posted once: ``key`` says what it is about where the words may differ."""

    type: Literal["Normal", "Warning"]
    reason: Reason
    message: str
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaStep:
    """One write on the run's Workload. ``GiveUp`` deletes it, ``LetGo`` drops our finalizer.

    ``holds``, ``reason`` and ``message`` are of the condition that ``PodsReady`` and ``Finish`` write.
    """

    verb: Literal["Ask", "Change", "Requeue", "GiveUp", "LetGo", "Finish", "PodsReady"]
    holds: bool = False
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do, in this order: children, the coordinator, quota, the status, events.

    ``lower``: StatefulSets that get fewer pods by themselves, where no record says what they are.
    ``makes`` and ``drops``: RolloutSnapshots of its schedules. ``status`` None writes nothing. ``remove_children``: the time to live is over. ``seek_secret``: and
    nothing that is watched is left: is the Secret? ``delete_run``: nothing is left of the run but its object, which shall
    go too.
    """

    wanted: Desired | None = None
    lower: Mapping[Role, ScaleState] = field(default_factory=dict)
    remove_children: bool = False
    seek_secret: bool = False
    delete_run: bool = False
    stop_coordinator: bool = False
    send_settings: bool = False
    quota: QuotaStep | None = None
    makes: tuple[SnapshotOrder, ...] = ()
    drops: tuple[MadeSnapshot, ...] = ()
    status: Mapping[str, Any] | None = None
    notes: tuple[EventSpec, ...] = ()
    requeue_seconds: float | None = None


IDLE = Plan()
