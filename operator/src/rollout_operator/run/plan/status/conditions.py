"""From what is observed to the status that says so: conditions, counts, no time that ticks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rollout_api import names
from rollout_api.conditions import ConditionType, Reason
from rollout_api.names import Role
from rollout_api.v1alpha1.common import Condition
from rollout_api.v1alpha1.run_status import Progress, ReportedCondition
from rollout_operator.controller.conditions import ConditionUpdate, Status, no, yes
from rollout_operator.run.attempt import ScaleState
from rollout_operator.run.plan.attempts import stateful_set
from rollout_operator.run.plan.learner_group import WAITS, Group
from rollout_operator.run.plan.model import REASONS, Blocked, Observed
from rollout_operator.run.plan.phases import (
    Phase,
    allowed_actors,
    has_role,
    running_actors,
    speaks_of,
    wanted_actors,
)

OWN_FIELDS = (
    "observedGeneration", "conditions", "attempt", "configuration", "startTime", "settingsGeneration",
    "activeSeconds", "completionTime", "resolved", "coordinator", "learner", "actors", "selector", "lastSnapshot", "best",
    "schedules",
)  # fmt: skip


def build_role_status(
    observed: Observed, role: Role, live: Mapping[Role, ScaleState], attempt: int
) -> Status | None:
    """Counts of one role; None when the run has no such workers."""
    child = stateful_set(observed, role)
    if child is None and role not in live:
        return None
    pods = [pod for pod in observed.pods_of(role) if pod.attempt == attempt]
    wanted = live.get(role)
    ready = sum(pod.ready and not pod.deleting for pod in pods)
    desired = wanted.replicas if wanted is not None else 0
    status: Status = {
        "ready": ready,
        "desired": desired,
        "replicas": len(observed.pods_of(role)),
        "restarts": sum(pod.restarts for pod in pods),
    }
    if role == "learner" and wanted is not None:
        status["incarnation"] = wanted.incarnation
        status["restarts"] = max(0, wanted.incarnation - wanted.first)
    return status


def aimed(observed: Observed, phase: Phase) -> Mapping[Role, ScaleState]:
    """What the status counts against: the pods there shall be in the end, those not let go yet included."""
    assert observed.spec is not None
    counts: Mapping[Role, int] = {
        "coordinator": 1,
        "learner": observed.spec.learner.nodes,
        "actor": running_actors(observed),
    }
    if phase.holding:
        return phase.live
    return {role: replace(live, replicas=counts[role]) for role, live in phase.live.items()}


def actors_condition(observed: Observed, counts: Status | None) -> ConditionUpdate:
    """Whether enough actors sample."""
    kind = ConditionType.ACTORS_READY
    if observed.spec is None or not has_role(observed, "actor"):
        return yes(kind, Reason.NO_ACTORS_NEEDED, "the work samples nothing")
    ready, desired = (counts or {}).get("ready", 0), (counts or {}).get("desired", 0)
    message = f"{ready} of {desired} actors are ready"
    wanted = wanted_actors(observed)
    if running_actors(observed) < wanted:
        return _held_back(observed, wanted, message)
    if desired and ready >= desired:
        return yes(kind, Reason.ACTORS_READY, message)
    if not observed.pods_of("actor"):
        trains = has_role(observed, "learner")
        message += f"; they start once the {'learner runs' if trains else 'coordinator is ready'}"
    return no(kind, Reason.ACTORS_NOT_READY, message)


def _held_back(observed: Observed, wanted: int, message: str) -> ConditionUpdate:
    """More actors are wanted than may run: who says so."""
    running, kind = running_actors(observed), ConditionType.ACTORS_READY
    allowed = allowed_actors(observed)
    if allowed is not None and allowed == running:
        message += f"; {wanted} are wanted, the runtime allows {running}"
        return no(kind, Reason.CEILING_EXCEEDED, message)
    message += f"; {wanted} are wanted, the queue gave quota for {running}"
    return no(kind, Reason.PARTIALLY_ADMITTED, message)


def learner_condition(
    observed: Observed, group: Group | None, live: Mapping[Role, ScaleState]
) -> ConditionUpdate:
    """Whether every rank runs."""
    kind = ConditionType.LEARNER_READY
    if observed.spec is None or not has_role(observed, "learner"):
        return yes(kind, Reason.NO_LEARNER_NEEDED, "the work trains nothing")
    wanted = live.get("learner")
    if group is None or wanted is None or not wanted.replicas:
        message = "the learner has no pods; they start once the coordinator is ready"
        return no(kind, Reason.LEARNER_NOT_READY, message)
    if wanted.incarnation != group.workload.incarnation and observed.blocked is None:
        if group.restart_cause is None:
            message = "the group is tried again; its devices had been given back"
            return no(kind, Reason.LEARNER_NOT_READY, message)
        return no(kind, Reason.RESTARTING, f"the group starts anew: {group.restart_cause.message}")
    if group.restart_cause is not None:
        return no(kind, Reason.RESTARTING, f"{WAITS}{group.restart_cause.message}")
    count = sum(pod.ready for pod in group.pods)
    told = observed.status.learner.incarnation if observed.status.learner else 0
    if group.complete or (group.was_complete and len(group.pods) == group.num_wanted):
        message = f"{group.num_wanted} of {group.num_wanted} pods run"
        ready = yes(kind, Reason.LEARNER_READY, message)
        return replace(ready, renewed=told != group.workload.incarnation)
    return no(kind, Reason.LEARNER_NOT_READY, f"{count} of {group.num_wanted} pods run")


def cluster_conditions(observed: Observed) -> list[ConditionUpdate]:
    """What nobody notices, where the operator may not look at the cluster."""
    if not observed.namespaced:
        return []
    message = (
        "the operator serves namespaces: lost nodes and missing StorageClasses are not noticed"
    )
    return [no(ConditionType.CLUSTER_WATCHED, Reason.NAMESPACED_MODE, message)]


def reported(progress: Progress | None, attempt: int) -> list[ConditionUpdate]:
    """What only the coordinator can judge."""
    if progress is None or not speaks_of(progress, attempt):
        return []
    return read_conditions(progress.conditions, Reason.PENDING)


def read_conditions(
    conditions: Iterable[Condition | ReportedCondition], unknown: Reason
) -> list[ConditionUpdate]:
    """Conditions as they were said; a reason that this version does not know becomes `unknown`."""
    return [
        ConditionUpdate(
            type=ConditionType(one.type),
            holds={"True": True, "False": False}.get(one.status),
            reason=REASONS.get(one.reason, unknown),
            message=one.message,
        )
        for one in conditions
    ]


def actor_selector(observed: Observed) -> str:
    """Selector of the actor pods, for the scale subresource and an HPA."""
    labels = names.worker_labels(observed.name, observed.uid, "actor")
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def own_part(status: Mapping[str, Any]) -> Status:
    """The fields of a status that the operator writes, without what is unset."""
    return {
        name: value
        for name, value in status.items()
        if name in OWN_FIELDS and value not in (None, "", [])
    }


def state_of(gate: Blocked) -> ConditionUpdate:
    """Whether a person must act, or it is waited for."""
    kind = ConditionType.STALLED if gate.stalled else ConditionType.RECONCILING
    return yes(kind, gate.reason, gate.message)
