"""What becomes of an endpoint next: from its spec and its Deployments to writes and a status. Pure.

A revision is all that its pods are made of, and never changes. A new one comes up whole beside the one that serves; the
Service is switched when all of it is ready, and what served before is deleted at the next look: its pods drain by
themselves. One that does not come up in time is scaled to nothing and marked, and what served goes on.
"""

from __future__ import annotations

from datetime import datetime

from rollout_operator.endpoint.model import EndpointPlan, EndpointSeen
from rollout_operator.endpoint.status import plan_notes, plan_status

SETTLE_SECONDS = 2.0
"""Between the switch of the Service and the end of what served before."""
PODS_SECONDS = 10.0
"""Between two looks at pods that do not come up."""


def plan_endpoint(seen: EndpointSeen, now: datetime) -> EndpointPlan:
    """The next look's writes, events and status."""
    plan = _plan_servers(seen)
    status = plan_status(seen, plan, now)
    notes = plan_notes(seen, plan, status)
    before = seen.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    told = None if status == _comparable(before) else status
    retry = seen.gate.retry_seconds if seen.gate is not None else None
    return EndpointPlan(
        keep=plan.keep,
        serves=plan.serves,
        deploy=plan.deploy,
        replicas=plan.replicas,
        fail=plan.fail,
        scale=plan.scale,
        remove=plan.remove,
        notes=notes if told is not None else (),
        status=told,
        requeue_seconds=retry if retry is not None else plan.requeue_seconds,
    )


def _plan_servers(seen: EndpointSeen) -> EndpointPlan:
    servers = seen.servers
    current = seen.selects if seen.selects in servers else ""
    if seen.suspend:
        serves = seen.target or seen.selects
        return EndpointPlan(keep=bool(serves), serves=serves, remove=tuple(sorted(servers)))
    if seen.gate is not None or not seen.target:
        return _stand_still(seen, current)
    if (late := _gives_up(seen, current)) is not None:
        return _go_on(seen, current, late)
    serves = seen.target if not current or is_up(seen) else current
    switched = seen.selects == serves
    stay = {seen.target, serves} if switched else {seen.target, serves, current}
    remove = tuple(sorted(servers.keys() - stay))
    return EndpointPlan(
        keep=True,
        serves=serves,
        deploy=True,
        replicas=seen.replicas,
        scale=_differ(seen, (current,)) if current != seen.target else (),
        remove=remove,
        requeue_seconds=_next_look(seen, switched=switched),
    )


def _stand_still(seen: EndpointSeen, current: str) -> EndpointPlan:
    """What serves goes on; where nothing but its model is not there any more, with as many servers as are wanted."""
    scale = _differ(seen, (current,)) if seen.lacks_model else ()
    return EndpointPlan(serves=current, scale=scale, replicas=seen.replicas)


def _next_look(seen: EndpointSeen, *, switched: bool) -> float | None:
    """Nobody tells of pods that do not come up: they are asked now and then."""
    if not switched:
        return SETTLE_SECONDS
    return None if is_up(seen) else PODS_SECONDS


def is_up(seen: EndpointSeen) -> bool:
    """Whether every server of the target answers."""
    found = seen.servers.get(seen.target)
    if found is None or found.failed:
        return False
    return found.observed and found.replicas == seen.replicas and found.ready >= seen.replicas


def _gives_up(seen: EndpointSeen, current: str) -> str | None:
    """Why the target is given up for what serves; empty where that is noted already, None where it is not given up."""
    found = seen.servers.get(seen.target)
    if found is None or not current or current == seen.target:
        return None
    if found.failed:
        return ""
    return " | ".join(one for one in (found.late, seen.trouble) if one) if found.late else None


def _go_on(seen: EndpointSeen, current: str, late: str) -> EndpointPlan:
    """What served before goes on, and the target stays as a mark that it was tried."""
    stay = {seen.target, current}
    return EndpointPlan(
        keep=True,
        serves=current,
        fail=late,
        scale=_differ(seen, (current,)),
        replicas=seen.replicas,
        remove=tuple(sorted(seen.servers.keys() - stay)),
    )


def _differ(seen: EndpointSeen, revisions: tuple[str, ...]) -> tuple[str, ...]:
    """Those whose number of servers is not what is wanted."""
    servers = seen.servers
    return tuple(
        one for one in revisions if one in servers and servers[one].replicas != seen.replicas
    )


def _comparable(before: dict[str, object]) -> dict[str, object]:
    """A status as it would be planned: what is empty is not written."""
    return {name: value for name, value in before.items() if value not in ([], None)}
