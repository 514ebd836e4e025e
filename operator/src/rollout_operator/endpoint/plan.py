"""What becomes of an endpoint next: from its spec and its Deployments to writes and a status. Pure.

A revision is all that its pods are made of, and never changes. A new one comes up whole beside the one that serves; the
Service is switched when all of it is ready, and what served before is deleted at the next look: its pods drain by
themselves. One that does not come up in time is scaled to nothing and marked, and what served goes on. Where a promotion
has evaluations, they are asked of all its ready servers first, by an address of their own, and one that misses a bar
ends in the same way: also the first of an endpoint, so that nothing serves which has not passed.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from rollout_operator.endpoint.model import EndpointPlan, EndpointSeen
from rollout_operator.endpoint.status import plan_notes, plan_status
from rollout_operator.endpoint.trial import FAILED, PASSED, TrialVerdict, judge

SETTLE_SECONDS = 2.0
"""Between the switch of the Service and the end of what served before."""
PODS_SECONDS = 10.0
"""Between two looks at pods that do not come up."""
MEASURE_SECONDS = 5.0
"""Between two looks at the Job that measures."""


def plan_endpoint(seen: EndpointSeen, now: datetime) -> EndpointPlan:
    """The next look's writes, events and status."""
    plan = _plan_servers(seen)
    status = plan_status(seen, plan, now)
    notes = plan_notes(seen, plan, status)
    before = seen.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    told = None if status == _comparable(before) else status
    retry = seen.gate.retry_seconds if seen.gate is not None else None
    return replace(
        plan,
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
    if _is_void(seen):
        return EndpointPlan(keep=True, serves=current, revive=True, requeue_seconds=SETTLE_SECONDS)
    if (late := _gives_up(seen, current)) is not None:
        return _go_on(seen, current, late)
    verdict = _judge(seen, current)
    if verdict.state == "Failed":
        assert seen.trial is not None
        words = f"{FAILED}{seen.trial.job}: {verdict.words}"
        return replace(_go_on(seen, current, words), verdict=verdict)
    passed = verdict.state == "Passed"
    serves = seen.target if passed and (not current or is_up(seen)) else current
    return replace(
        _bring_up(seen, current, serves), verdict=verdict, measures=not passed, asks=verdict.starts
    )


def _bring_up(seen: EndpointSeen, current: str, serves: str) -> EndpointPlan:
    """The target beside what serves, until it serves itself."""
    servers = seen.servers
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


def _judge(seen: EndpointSeen, current: str) -> TrialVerdict:
    """Whether the target may serve, as far as its evaluations say: asked when all of it is up."""
    if seen.trial is None or current == seen.target:
        return PASSED
    if seen.trial.measured is None and not wants_measuring(seen):
        return TrialVerdict(state="Waiting")
    return judge(seen.trial)


def wants_measuring(seen: EndpointSeen) -> bool:
    """Whether the next thing is what the target's Job says."""
    unknown = seen.trial is not None and seen.trial.measured is None
    return unknown and seen.selects != seen.target and seen.replicas > 0 and is_up(seen)


def _is_void(seen: EndpointSeen) -> bool:
    """Whether the target was given up by evaluations which are not those of now, or that it passes by the bar of now."""
    found, trial = seen.servers.get(seen.target), seen.trial
    if found is None or not found.failed.startswith(FAILED):
        return False
    if trial is None or trial.job not in found.failed:
        return True
    return trial.measured is not None and judge(trial).state == "Passed"


def _stand_still(seen: EndpointSeen, current: str) -> EndpointPlan:
    """What serves goes on; where nothing but its model is not there any more, with as many servers as are wanted."""
    scale = _differ(seen, (current,)) if seen.lacks_model else ()
    return EndpointPlan(serves=current, scale=scale, replicas=seen.replicas)


def _next_look(seen: EndpointSeen, *, switched: bool) -> float | None:
    """Nobody tells of pods that do not come up, nor of Jobs: they are asked now and then."""
    if not switched:
        return SETTLE_SECONDS
    if not is_up(seen):
        return PODS_SECONDS
    return MEASURE_SECONDS if wants_measuring(seen) else None


def is_up(seen: EndpointSeen) -> bool:
    """Whether every server of the target answers."""
    found = seen.servers.get(seen.target)
    if found is None or found.failed:
        return False
    return found.observed and found.replicas == seen.replicas and found.ready >= seen.replicas


def _gives_up(seen: EndpointSeen, current: str) -> str | None:
    """Why the target is given up for what serves; empty where that is noted already, None where it is not given up."""
    found = seen.servers.get(seen.target)
    if found is None or current == seen.target:
        return None
    if found.failed and (current or found.failed.startswith(FAILED)):
        return ""
    if not current:
        return None
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


def _comparable(before: object) -> object:
    """A status as it would be planned: what is empty is not written."""
    if isinstance(before, dict):
        kept = {name: _comparable(value) for name, value in before.items()}
        return {name: value for name, value in kept.items() if value not in ([], None)}
    return [_comparable(one) for one in before] if isinstance(before, list) else before
