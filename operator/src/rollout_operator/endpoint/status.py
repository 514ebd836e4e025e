"""What is said of an endpoint: counts, revisions, conditions as a Deployment has them, and events. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from rollout_api import names
from rollout_api.conditions import ConditionType, Reason
from rollout_api.v1alpha1.inference.endpoint import Revision
from rollout_operator.cache.answers import Answer
from rollout_operator.cache.children import Deployed
from rollout_operator.controller.conditions import ConditionUpdate, Status, no, stamp, yes
from rollout_operator.controller.times import render_time
from rollout_operator.endpoint.inputs import address
from rollout_operator.endpoint.model import EndpointPlan, EndpointSeen, speaks_tls
from rollout_operator.endpoint.trial import Canary, read_mark
from rollout_operator.kube.resources import HTTP_ROUTES, resource_of
from rollout_operator.run.plan.model import EventSpec

Said = tuple[Reason, str]
KEPT = (
    "servers keep the version that they have, and a new one starts for as long as the bucket has it"
)


def plan_status(seen: EndpointSeen, plan: EndpointPlan, now: datetime) -> Status:
    """The whole status."""
    servers = seen.servers.values()
    labels = names.server_labels(seen.name, seen.uid)
    current = _current(seen, plan)
    begins = current if current != seen.status.current_revision else ""
    status: Status = {
        "observedGeneration": seen.generation,
        "conditions": stamp(_conditions(seen, plan), seen.status.conditions, seen.generation, now),
        "replicas": sum(one.pods for one in servers),
        "readyReplicas": sum(one.ready for one in servers),
        "selector": ",".join(f"{key}={value}" for key, value in labels.items()),
        "url": address(seen.name, seen.namespace, tls=speaks_tls(seen, plan.serves)),
    }
    if current:
        status["currentRevision"] = current
    known = [
        one.model_copy(update={"served_time": render_time(now)}) if one.name == begins else one
        for one in _revisions(seen, now)
    ]
    if known:
        status["revisions"] = [_describe(one, seen, plan) for one in known]
    return status


def plan_notes(seen: EndpointSeen, plan: EndpointPlan, status: Status) -> tuple[EventSpec, ...]:
    """What has happened since the status before."""
    return tuple(_notes(seen, plan, status))


def _notes(seen: EndpointSeen, plan: EndpointPlan, status: Status) -> Iterator[EventSpec]:
    if seen.gate is not None:
        yield _note("Warning", seen.gate.reason, seen.gate.message)
        return
    if plan.deploy and seen.target not in seen.servers:
        words = f"servers of {seen.target} are made for {seen.model}"
        yield _note("Normal", Reason.REVISION_CREATED, words, seen.target)
    if plan.asks:
        words = f"{seen.target}: {plan.verdict.words}"
        yield _note("Normal", _waits(plan), words, seen.target)
    if plan.fail:
        reason, words = _given_up(seen, plan, plan.fail)
        yield _note("Warning", reason, words, seen.target)
    current = status.get("currentRevision")
    if current and current != seen.status.current_revision:
        figures = plan.verdict.figures
        words = f"{current} serves: {figures}" if figures else f"{current} serves"
        yield _note("Normal", Reason.REVISION_SERVES, words, str(current))


def _waits(plan: EndpointPlan) -> Reason:
    """What a candidate goes through."""
    return plan.trial.waits if plan.trial is not None else Reason.REVISION_CREATED


def _given_up(seen: EndpointSeen, plan: EndpointPlan, why: str) -> Said:
    """That the target serves nobody, and what does."""
    reason, words = read_mark(why)
    goes_on = ""
    if plan.serves != seen.target:
        goes_on = f"; {plan.serves} goes on serving" if plan.serves else "; nothing serves"
    return reason, f"{seen.target}: {words}{goes_on}"


def _note(kind: Any, reason: Reason, words: str, key: str = "") -> EventSpec:
    return EventSpec(type=kind, reason=reason, message=words, key=key)


def _current(seen: EndpointSeen, plan: EndpointPlan) -> str:
    """The revision that serves, once it has been ready; what served last while nothing does."""
    found = seen.servers.get(plan.serves)
    ready = found is not None and found.ready > 0
    return plan.serves if ready else (seen.status.current_revision or "")


# -- revisions ----------------------------------------------------------------------------------------


def _revisions(seen: EndpointSeen, now: datetime) -> list[Revision]:
    """The newest first: of those that have no servers no more than are kept."""
    known = list(seen.status.revisions)
    if (model := seen.model) is not None and all(one.name != seen.target for one in known):
        new = Revision(
            name=seen.target,
            model_uri=model.uri,
            model_revision=model.revision,
            model_digest=model.digest or None,
            image=seen.image,
            creation_time=render_time(now),
        )
        known.insert(0, new)
    most = seen.spec.revision_history_limit if seen.spec is not None else len(known)
    needed = {seen.target, *seen.servers}
    idle = [one.name for one in known if one.name not in needed]
    dropped = set(idle[max(0, most - (len(known) - len(idle))) :])
    return [one for one in known if one.name not in dropped]


def _describe(one: Revision, seen: EndpointSeen, plan: EndpointPlan) -> dict[str, Any]:
    found = seen.servers.get(one.name)
    if one.name == seen.target:
        one = one.model_copy(update=dict(plan.verdict.records))
    described = one.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not described["measured"]:
        del described["measured"]
    return {
        **described,
        "replicas": found.pods if found is not None else 0,
        "ready": found.ready if found is not None else 0,
        "weight": _weigh(one.name, seen, plan),
    }


def _weigh(name: str, seen: EndpointSeen, plan: EndpointPlan) -> int:
    """Percent of the sessions that a revision answers."""
    share = plan.trial.percent if isinstance(plan.trial, Canary) and plan.serves else 0
    if name == plan.serves:
        return 100 - share
    return share if name == seen.target else 0


# -- conditions ---------------------------------------------------------------------------------------


def _conditions(seen: EndpointSeen, plan: EndpointPlan) -> list[ConditionUpdate]:
    serving = seen.servers.get(plan.serves)
    available = _available(seen, plan, serving)
    progress, stalled = _progress(seen, plan)
    found = [available, progress]
    if stalled is not None:
        found.append(yes(ConditionType.STALLED, *stalled))
    elif progress.reason in (Reason.REVISION_CREATED, Reason.EVALUATING, Reason.BAKING):
        found.append(yes(ConditionType.RECONCILING, progress.reason, progress.message))
    if seen.suspend and not seen.servers:
        found.append(yes(ConditionType.SUSPENDED, Reason.SUSPENDED, "spec.suspend is true"))
    return [*found, *_following(seen), *_traffic(seen), _ready(available, progress, stalled)]


def _ready(
    available: ConditionUpdate, progress: ConditionUpdate, stalled: Said | None
) -> ConditionUpdate:
    """What the spec says is what answers: not while another revision comes up, though what was before still answers."""
    kind = ConditionType.READY
    if stalled is not None:
        return no(kind, *stalled)
    if available.holds and progress.reason is not Reason.REVISION_SERVES:
        return no(kind, progress.reason, progress.message)
    ready = yes if available.holds else no
    return ready(kind, available.reason, available.message)


def _available(seen: EndpointSeen, plan: EndpointPlan, serving: Deployed | None) -> ConditionUpdate:
    kind = ConditionType.AVAILABLE
    if serving is not None and serving.ready and not seen.suspend:
        words = f"{serving.ready} of {serving.replicas} servers of {serving.revision} answer"
        return yes(kind, Reason.SERVING, words)
    if seen.suspend:
        return no(kind, Reason.SUSPENDED, "spec.suspend is true: there are no servers")
    if seen.held and not seen.replicas and seen.gate is None:
        words = f"no servers: {names.holder_name(seen.name)} holds requests, and one comes for them"
        return yes(kind, Reason.SCALED_TO_ZERO, words)
    if seen.gate is not None:
        return no(kind, seen.gate.reason, seen.gate.message)
    if not seen.replicas:
        return no(kind, Reason.SCALED_TO_ZERO, "spec.replicas is 0: there are no servers")
    if not plan.serves:
        return no(kind, Reason.NO_SERVER_READY, f"{seen.target} has not passed its evaluations")
    meanwhile = f"; {names.holder_name(seen.name)} holds requests" if seen.held else ""
    return no(kind, Reason.NO_SERVER_READY, f"no server of {plan.serves} answers yet{meanwhile}")


def _following(seen: EndpointSeen) -> Iterator[ConditionUpdate]:
    """Whether what a run saves is taken up. Servers go on with what they have where it is not."""
    kind = ConditionType.FOLLOWING
    if not seen.follows or seen.suspend:
        return
    live = seen.model.live if seen.model is not None else None
    if live is None:
        if seen.gate is not None and seen.lacks_model:
            gone = seen.gate.reason is Reason.REFERENCE_NOT_FOUND
            reason = Reason.RUN_GONE if gone else seen.gate.reason
            kept = f"; {KEPT}" if seen.selects in seen.servers else ""
            yield no(kind, reason, f"{seen.gate.message}{kept}")
        return
    version = live.version
    words = f"step {version.step} ({version.digest}) is what run {live.run} has saved last"
    if live.halts is None:
        yield yes(kind, Reason.RUNNING, words)
    else:
        reason, why = live.halts
        yield no(kind, reason, f"{words}; nothing newer comes: {why}; {KEPT}")


def _traffic(seen: EndpointSeen) -> Iterator[ConditionUpdate]:
    """What autoscaler and Gateways make of what the operator made for them, and what the cluster has no kind for."""
    for kind in sorted(seen.traffic):
        about = ConditionType.ROUTED if kind == HTTP_ROUTES.kind else ConditionType.SCALED
        what = f"{kind} {names.server_name(seen.name)}"
        child = seen.children.get((kind, names.server_name(seen.name)))
        answer = child.answer if child is not None and not child.deleting else None
        if kind in seen.unserved:
            words = f"the cluster does not serve {kind} ({resource_of(kind).api_version})"
            yield no(about, Reason.KIND_NOT_SERVED, words)
        elif about is ConditionType.SCALED:
            yield _scaled(seen, what, answer)
        elif answer is None or not answer.given or answer.trouble:
            words = answer.trouble if answer is not None and answer.trouble else "not answered yet"
            yield no(about, Reason.ROUTE_NOT_ACCEPTED, f"{what}: {words}")
        else:
            yield yes(about, Reason.ROUTE_ACCEPTED, f"{what} is accepted by its Gateways")


def _scaled(seen: EndpointSeen, what: str, answer: Answer | None) -> ConditionUpdate:
    assert seen.spec is not None and seen.spec.scaling is not None, "what is wanted is of a spec"
    if answer is not None and answer.trouble:
        words = f"{what}: {answer.trouble}"
        return no(ConditionType.SCALED, Reason.AUTOSCALER_FAILED, words)
    low, high = seen.spec.scaling.min_replicas, seen.spec.scaling.max_replicas
    words = f"{what} wants {seen.replicas} servers, of {low} to {high}"
    return yes(ConditionType.SCALED, Reason.AUTOSCALED, words)


def _progress(seen: EndpointSeen, plan: EndpointPlan) -> tuple[ConditionUpdate, Said | None]:
    """The condition, and what a person must act on."""
    kind = ConditionType.PROGRESSING
    if seen.gate is not None:
        said = (seen.gate.reason, seen.gate.message)
        return no(kind, *said), said if seen.gate.stalled else None
    if seen.suspend:
        return no(kind, Reason.SUSPENDED, "spec.suspend is true"), None
    target = seen.servers.get(seen.target)
    trouble = f" | {seen.trouble}" if seen.trouble else ""
    late = plan.fail or (target.failed if target is not None else "")
    if target is not None and target.late and not late:
        late = f"{target.late}{trouble}"
    if late:
        said = _given_up(seen, plan, late)
        return no(kind, *said), said
    num = target.ready if target is not None else 0
    words = f"{num} of {seen.replicas} servers of {seen.target} are ready"
    words += trouble if num < seen.replicas else ""
    words += f", as spec.rollbackTo {seen.rollback} says" if seen.rollback else ""
    done = target is not None and num >= seen.replicas and plan.serves == seen.target
    if done and seen.selects == seen.target:
        return yes(kind, Reason.REVISION_SERVES, words), None
    meanwhile = ""
    if plan.serves != seen.target:
        meanwhile = f"; {plan.serves or 'nothing'} serves meanwhile"
    if plan.verdict.state == "Waiting" and plan.verdict.words:
        return yes(kind, _waits(plan), f"{seen.target}: {plan.verdict.words}{meanwhile}"), None
    return yes(kind, Reason.REVISION_CREATED, words + meanwhile), None
