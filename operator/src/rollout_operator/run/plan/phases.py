"""How many pods each role has next: start order, suspension, end. Pure.

Start: coordinator, learner, actors. Suspension: cut, learner, actors, coordinator. End: workers, then
the coordinator. Each step waits for the pods of the step before, as they really are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rollout_api import names
from rollout_api.conditions import Reason
from rollout_api.names import Role
from rollout_api.v1alpha1.run_status import Progress
from rollout_operator.cache.children import Pod
from rollout_operator.controller.times import parse_time
from rollout_operator.run.attempt import ScaleState
from rollout_operator.run.plan.attempts import replicas_of, stateful_set
from rollout_operator.run.plan.learner_group import (
    Group,
    as_live,
    find_condition,
    first_live,
    held_until,
    plan_group,
)
from rollout_operator.run.plan.model import ROLES, Observed, PodDeletion
from rollout_operator.run.plan.preconditions.checks import actors_ceiling

CUT_SECONDS_MAX = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What the pods shall be; ``due``: when to look again. ``cutting``: the coordinator stops the run."""

    live: dict[Role, ScaleState]
    due: datetime | None = None
    cutting: bool = False
    gone: bool = False
    holding: bool = False


def has_role(observed: Observed, role: Role) -> bool:
    """Whether the run has workers of this role at all."""
    assert observed.spec is not None
    if role == "learner":
        return observed.spec.train is not None
    return role == "coordinator" or observed.spec.needs_actors


def coordinator_ready(observed: Observed, attempt: int) -> bool:
    """Whether the coordinator answers."""
    return any(p.ready and p.attempt == attempt for p in observed.pods_of("coordinator"))


def plan_running(observed: Observed, group: Group | None, attempt: int, now: datetime) -> Phase:
    """The next step towards everything running."""
    until = held_until(observed)
    workers = any(pod.role != "coordinator" for pod in observed.pods)
    if until is not None and (now < until or workers):
        return _hold(observed, until if now < until else None)
    ready = coordinator_ready(observed, attempt)
    live: dict[Role, ScaleState] = {"coordinator": ScaleState(replicas=1)}
    due: datetime | None = None
    if has_role(observed, "learner"):
        live["learner"], due = _learner(observed, group, may_start=ready, now=now)
        gives_up = live["learner"].replicas == 0 and live["learner"].hold_until != ""
        if gives_up and group is not None and group.workload.replicas:
            return replace(_hold(observed, None), live=_all_zero(observed, live["learner"]))
    if has_role(observed, "actor"):
        complete = group is None or group.complete or group.was_complete
        released = _released(observed, "actor", attempt)
        may_start = released or (ready and complete)
        live["actor"] = ScaleState(replicas=running_actors(observed) if may_start else 0)
    return Phase(live=live, due=due)


def _learner(
    observed: Observed, group: Group | None, *, may_start: bool, now: datetime
) -> tuple[ScaleState, datetime | None]:
    if group is None:
        return first_live(observed), None
    return plan_group(observed, group, may_start=may_start, now=now)


def running_actors(observed: Observed) -> int:
    """Actors that shall run: those that are wanted, no more than the queue gave quota for and the runtime allows."""
    granted = observed.quota.granted("actor") if observed.quota is not None else None
    bounds = (wanted_actors(observed), granted, allowed_actors(observed))
    return min(bound for bound in bounds if bound is not None)


def allowed_actors(observed: Observed) -> int | None:
    """Actors that the runtime's ceilings leave room for; those that run already stay when one is lowered."""
    assert observed.spec is not None
    ceiling = actors_ceiling(observed.spec, observed.runtime)
    return None if ceiling is None else max(ceiling, replicas_of(observed, "actor"))


def wanted_actors(observed: Observed) -> int:
    """``actors.replicas``, or what autoscale asks for within its range."""
    assert observed.spec is not None
    actors, progress = observed.spec.actors, observed.status.progress
    if actors.autoscale is None or progress is None or progress.actors_wanted is None:
        return actors.replicas
    return max(actors.autoscale.min, min(actors.autoscale.max, progress.actors_wanted))


def _released(observed: Observed, role: Role, attempt: int) -> bool:
    child = stateful_set(observed, role)
    return child is not None and child.attempt == attempt and replicas_of(observed, role) > 0


def _hold(observed: Observed, until: datetime | None) -> Phase:
    child = stateful_set(observed, "learner")
    assert child is not None and child.workload is not None
    learner = replace(as_live(child.workload), replicas=0)
    return Phase(live=_all_zero(observed, learner), due=until, holding=True)


def _all_zero(observed: Observed, learner: ScaleState) -> dict[Role, ScaleState]:
    live: dict[Role, ScaleState] = {"coordinator": ScaleState(replicas=0), "learner": learner}
    if has_role(observed, "actor"):
        live["actor"] = ScaleState(replicas=0)
    return live


def current_live(observed: Observed, role: Role) -> ScaleState:
    """A role's StatefulSet as it is."""
    child = stateful_set(observed, role)
    if child is None or child.workload is None:
        return ScaleState(replicas=0)
    return as_live(child.workload)


def plan_down(observed: Observed, steps: tuple[tuple[Role, ...], ...], now: datetime) -> Phase:
    """Scale the roles of the first step that still has pods to 0, and leave the later ones."""
    live = {role: current_live(observed, role) for role in ROLES if stateful_set(observed, role)}
    for step in steps:
        for role in step:
            if role in live:
                live[role] = replace(live[role], replicas=0)
        if any(observed.pods_of(role) or replicas_of(observed, role) for role in step):
            return Phase(live=live, due=now + timedelta(seconds=30))
    return Phase(live=live, gone=True)


def at_rest(observed: Observed) -> Phase:
    """No pod is left, and what there is stays as it is."""
    live = {role: current_live(observed, role) for role in ROLES if stateful_set(observed, role)}
    return Phase(live=live, gone=True)


def as_ended(observed: Observed) -> Phase:
    """Every role of the run as it is when it ends, one whose StatefulSet is missing included."""
    return Phase(
        live={role: current_live(observed, role) for role in ROLES if has_role(observed, role)}
    )


SUSPENSION: tuple[tuple[Role, ...], ...] = (("learner",), ("actor",), ("coordinator",))
END: tuple[tuple[Role, ...], ...] = (("learner", "actor"), ("coordinator",))


def plan_suspension(observed: Observed, attempt: int, now: datetime) -> Phase:
    """The cut first, while anybody works and the coordinator can be asked; then the pods go."""
    until = _cut_until(observed, attempt, now)
    if until is None:
        return plan_down(observed, SUSPENSION, now)
    live = {role: current_live(observed, role) for role in ROLES if stateful_set(observed, role)}
    return Phase(live=live, due=min(until, now + timedelta(seconds=5)), cutting=True)


def _cut_until(observed: Observed, attempt: int, now: datetime) -> datetime | None:
    """How long the cut may still take; None when there is nothing to cut, or it is done."""
    if not observed.coordinator_reachable or not coordinator_ready(observed, attempt):
        return None
    if not replicas_of(observed, "learner"):
        return None
    progress = observed.status.progress
    if progress is not None and speaks_of(progress, attempt) and progress.outcome is not None:
        return None
    ready = find_condition(observed, "Ready")
    if ready is None or ready.reason not in {Reason.RUNNING.value, Reason.DRAINING.value}:
        return None
    began = parse_time(ready.last_transition_time) if ready.status != "True" else now
    until = began + timedelta(seconds=CUT_SECONDS_MAX)
    return until if now < until else None


def speaks_of(progress: Progress, attempt: int) -> bool:
    """Whether the coordinator's word is of this attempt; 0 is one that does not say."""
    return progress.attempt in {0, attempt}


def plan_deletions(
    observed: Observed, live: dict[Role, ScaleState], attempt: int
) -> list[PodDeletion]:
    """Pods that stand in the way: of an older group start, of an older attempt, on a node that is gone."""
    found: list[PodDeletion] = []
    for pod in observed.pods:
        if why := _lost(observed, pod):
            found.append(PodDeletion(pod=pod, why=why, force=True))
        elif not pod.deleting and (why := _old(observed, pod, live, attempt)):
            found.append(PodDeletion(pod=pod, why=why))
    return found


def _stuck(observed: Observed, pod: Pod, attempt: int) -> str:
    """What the coordinator says of an actor that does not move, when it means this pod."""
    progress = observed.status.progress
    if progress is None or progress.stuck is None or not speaks_of(progress, attempt):
        return ""
    meant = pod.role == "actor" and progress.stuck.worker == f"actor-{pod.ordinal}"
    return progress.stuck.message if meant and pod.created < parse_time(progress.stuck.time) else ""


def _old(observed: Observed, pod: Pod, live: dict[Role, ScaleState], attempt: int) -> str:
    if pod.attempt < attempt and not pod.ready:
        return f"it is of run attempt {pod.attempt} and not ready"
    if why := _stuck(observed, pod, attempt):
        return why
    if pod.role == "learner" and "learner" in live:
        now = live["learner"].incarnation
        if pod.attempt == attempt and pod.incarnation < now:
            return f"the learner's group started anew ({now})"
    return ""


def _lost(observed: Observed, pod: Pod) -> str:
    if not pod.node or not observed.watches_nodes:
        return ""
    node = observed.nodes.get(pod.node)
    if node is None:
        return f"node {pod.node} is gone"
    if node.out_of_service and (pod.deleting or not pod.ready):
        return f"node {pod.node} is out of service"
    return ""


def lost_node(observed: Observed, now: datetime) -> tuple[str, datetime | None]:
    """The node that has not answered for too long, and when the next one will have."""
    if observed.spec is None:
        return "", None
    bound = timedelta(seconds=observed.spec.limits.node_lost_seconds)
    next_due: datetime | None = None
    for pod in observed.pods:
        node = observed.nodes.get(pod.node)
        if node is None or node.unready_since is None:
            continue
        due = node.unready_since + bound
        if now >= due:
            return f"node {node.name} with pod {pod.name} does not answer", None
        next_due = due if next_due is None else min(next_due, due)
    return "", next_due


def not_wanted(observed: Observed) -> frozenset[tuple[str, str]]:
    """Recorded children that shall be gone: the learner's budget once its snapshot is durable."""
    progress = observed.status.progress
    durable = progress is not None and any(
        c.type == "Snapshotted" and c.status == "True" for c in progress.conditions
    )
    name = names.workload_name(observed.name, "learner")
    return frozenset({("PodDisruptionBudget", name)}) if durable else frozenset()
