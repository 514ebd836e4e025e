"""What becomes of an endpoint next: from its spec and its Deployments to writes and a status. Pure.

A revision is all that its pods are made of, and never changes. A new one comes up whole beside the one that serves; the
Service is switched when all of it is ready, and what served before is deleted at the next look: its pods drain by
themselves. One that does not come up in time is scaled to nothing and marked, and what served goes on. Where a promotion
has evaluations, they are asked of all its ready servers first, by an address of their own, and one that misses a bar
ends in the same way: also the first of an endpoint, so that nothing serves which has not passed. A canary then answers a
share of the sessions beside what serves, and ends in that way as soon as it is worse.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from rollout_api.conditions import Reason
from rollout_operator.endpoint.holding import SETTLE_SECONDS, plan_holding
from rollout_operator.endpoint.model import EndpointPlan, EndpointSeen
from rollout_operator.endpoint.status import plan_notes, plan_status
from rollout_operator.endpoint.trial import (
    PASSED,
    Canary,
    Trial,
    TrialVerdict,
    mark_failed,
    read_mark,
)

PODS_SECONDS = 10.0
"""Between two looks at pods that do not come up."""
FOLLOW_SECONDS = 5.0
"""Between two looks at a run whose weights are followed: what it saves is no news to whoever names it."""
MEASURE_SECONDS = 5.0
"""Between two looks at the Job that measures or watches."""


def plan_endpoint(seen: EndpointSeen, now: datetime) -> EndpointPlan:
    """The next look's writes, events and status."""
    plan = plan_holding(seen, _plan_servers(seen))
    status = plan_status(seen, plan, now)
    notes = plan_notes(seen, plan, status)
    before = seen.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    told = None if status == _comparable(before) else status
    retry = seen.gate.retry_seconds if seen.gate is not None else None
    if retry is None and seen.follows and not seen.suspend:
        retry = min(plan.requeue_seconds or FOLLOW_SECONDS, FOLLOW_SECONDS)
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
        return _revive(seen, current)
    if (late := _gives_up(seen, current)) is not None:
        return _go_on(seen, current, late)
    trial, verdict = _try(seen, current)
    if trial is not None and verdict.state == "Failed":
        return replace(_go_on(seen, current, mark_failed(trial, verdict.words)), verdict=verdict)
    serves = seen.target if trial is None and (not current or is_up(seen)) else current
    return replace(
        _bring_up(seen, current, serves), trial=trial, verdict=verdict, asks=verdict.starts
    )


def _revive(seen: EndpointSeen, current: str) -> EndpointPlan:
    """That the target was given up is taken back; the next look goes on with it."""
    return EndpointPlan(
        keep=True,
        serves=current,
        revive=True,
        replicas=seen.replicas,
        requeue_seconds=SETTLE_SECONDS,
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


def _try(seen: EndpointSeen, current: str) -> tuple[Trial | Canary | None, TrialVerdict]:
    """The trial that the target has not passed, and what is known of it; None where it has passed all."""
    if current == seen.target:
        return None, PASSED
    records, figures = {}, []
    for trial in seen.trials:
        verdict = _judge(seen, trial)
        records |= verdict.records
        if verdict.state != "Passed":
            return trial, replace(verdict, records=records)
        figures.append(verdict.figures)
    return None, replace(PASSED, figures="; ".join(figures), records=records)


def _judge(seen: EndpointSeen, trial: Trial | Canary) -> TrialVerdict:
    """What is known: asked when all of the target is up."""
    asked = trial.known or _answers(seen)
    return trial.judge() if asked else TrialVerdict(state="Waiting")


def _answers(seen: EndpointSeen) -> bool:
    """Whether the target has servers, and all of them answer."""
    return seen.replicas > 0 and is_up(seen)


def find_pending(seen: EndpointSeen) -> Trial | Canary | None:
    """The trial whose Job says what is next; None where there is none, or servers are waited for."""
    trial, _ = _try(seen, seen.selects)
    return trial if trial is not None and not trial.known and _answers(seen) else None


def _is_void(seen: EndpointSeen) -> bool:
    """Whether the target was given up in a trial which is not one of now, or that it passes by the bar of now."""
    found = seen.servers.get(seen.target)
    if found is None or not found.failed:
        return False
    reason, words = read_mark(found.failed)
    if reason is Reason.PROGRESS_DEADLINE_EXCEEDED:
        return False
    same = [one for one in seen.trials if one.failed is reason and one.job in words]
    return not same or (same[0].known and same[0].judge().state == "Passed")


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
    return MEASURE_SECONDS if find_pending(seen) is not None else None


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
    tried = read_mark(found.failed)[0] is not Reason.PROGRESS_DEADLINE_EXCEEDED
    if found.failed and (current or tried):
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
