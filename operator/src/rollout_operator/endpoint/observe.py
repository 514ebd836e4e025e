"""One endpoint as it is: its spec under the rules, on its runtime, and its children. Reads; never writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollout_api import names
from rollout_api.checks.inference.endpoint import check_endpoint
from rollout_api.checks.pods.allowed import find_not_allowed
from rollout_api.conditions import Reason
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.inference.endpoint import EndpointSpec, EndpointStatus
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.cache.children import Child
from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.endpoint.history import HandedOn, go_back
from rollout_operator.endpoint.inputs import ServerInputs
from rollout_operator.endpoint.model import EndpointSeen, ServedModel
from rollout_operator.endpoint.render.children import RevisionTemplate, build_revision
from rollout_operator.endpoint.render.trials import name_evaluations, name_job, name_watch
from rollout_operator.endpoint.sources.find import find_model, recall_model
from rollout_operator.endpoint.trial import Canary, Trial
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.preconditions.checks import describe
from rollout_operator.run.render.inputs import Platform
from rollout_operator.run.surroundings import find_runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLook:
    """What is seen of an endpoint, and what its children are rendered from; without these where ``seen`` has a gate."""

    seen: EndpointSeen
    inputs: ServerInputs | None = None
    revision: RevisionTemplate | None = None


def look(
    stored: Stored,
    store: Store,
    platform: Callable[[], Platform],
    signers: Collection[str],
    history: Mapping[str, str],
    served: Collection[str] = (),
) -> EndpointLook:
    """An endpoint as the store knows it.

    ``signers``: whose snapshots are believed; ``history``: records of revisions; ``served``: optional kinds that there are.
    """
    namespace, document = stored.key.namespace, json.loads(stored.spec)
    document, handed_on, unknown = _effective(document, history)
    spec, gate = parse_spec(stored, document)
    gate = gate or unknown
    runtime, _, unfound = find_runtime(store, namespace, document.get("runtimeRef"))
    if spec is not None:
        gate = gate or unfound or check_on_runtime(spec, runtime, namespace)
    children = store.children(namespace, stored.uid)
    address = _selects(children, names.server_name(stored.key.name))
    held = address == names.holder_name(stored.key.name)
    seen = EndpointSeen(
        name=stored.key.name,
        namespace=namespace,
        uid=stored.uid,
        generation=stored.generation,
        spec=spec,
        status=EndpointStatus.model_validate(_known_only(stored.read_status())),
        gate=gate,
        children=dict(children),
        selects=_selects(children, names.awake_name(stored.key.name)) if held else address,
        held=held,
        history=history,
        served=frozenset(served),
    )
    if gate is not None or spec is None:
        return EndpointLook(seen=seen)
    if handed_on is None:
        model = find_model(store, stored.key, spec.model, runtime, signers)
    else:
        model = recall_model(handed_on, namespace, runtime)
    if isinstance(model, Blocked):
        return EndpointLook(seen=replace(seen, gate=model, lacks_model=True))
    return render(seen, spec, model, runtime, platform())


def _selects(children: Mapping[tuple[str, str], Child], name: str) -> str:
    """What a Service sends requests to; empty without it."""
    service = children.get(("Service", name))
    return service.selects if service is not None and not service.deleting else ""


def _effective(
    document: dict[str, Any], history: Mapping[str, str]
) -> tuple[dict[str, Any], HandedOn | None, Blocked | None]:
    """The spec that holds: what is written, or that of the revision that is gone back to."""
    if not document.get("rollbackTo"):
        return document, None, None
    found = go_back(document, history)
    return (document, None, found) if isinstance(found, Blocked) else (*found, None)


def render(
    seen: EndpointSeen,
    spec: EndpointSpec,
    model: ServedModel,
    runtime: RuntimeSpec,
    platform: Platform,
) -> EndpointLook:
    """With the revision that the spec comes to."""
    inputs = ServerInputs(
        name=seen.name,
        namespace=seen.namespace,
        uid=seen.uid,
        spec=spec,
        model=model,
        runtime=runtime,
        platform=platform,
    )
    revision = build_revision(inputs)
    trials = () if seen.rollback else tuple(_find_trials(inputs, revision.name, seen))
    target = replace(seen, target=revision.name, image=inputs.image, model=model, trials=trials)
    return EndpointLook(seen=target, inputs=inputs, revision=revision)


def _find_trials(
    inputs: ServerInputs, revision: str, seen: EndpointSeen
) -> Iterator[Trial | Canary]:
    """What is to be found out of the target, and what its status says was found."""
    wanted, known = inputs.spec.promotion, seen.status.revisions
    if wanted.evaluations:
        job = name_job(inputs, revision)
        measured = [one.measured for one in known if one.measured_by == job]
        yield Trial(
            job=job,
            asked=name_evaluations(wanted.evaluations),
            measured=measured[0] if measured else None,
        )
    if wanted.canary_percent and seen.selects in seen.servers and seen.selects != revision:
        job = name_watch(inputs, revision, seen.selects)
        figures = [one.canary for one in known if one.watched_by == job]
        yield Canary(
            job=job,
            percent=wanted.canary_percent,
            guard=wanted.guard,
            figures=figures[0] if figures else None,
        )


def parse_spec(
    stored: Stored, document: Mapping[str, Any]
) -> tuple[EndpointSpec | None, Blocked | None]:
    """The spec, and what is wrong with it: the rules of webhook and command line."""
    if stored.excess:
        return None, Blocked(reason=Reason.INVALID_SPEC, message=stored.excess)
    try:
        spec = EndpointSpec.model_validate(document)
    except ValueError as error:
        return None, Blocked(reason=Reason.INVALID_SPEC, message=str(error)[:2000])
    problems = [one for one in check_endpoint(spec) if one.severity is Severity.error]
    return spec, _blocked(Reason.INVALID_SPEC, problems)


def check_on_runtime(spec: EndpointSpec, runtime: RuntimeSpec, namespace: str) -> Blocked | None:
    """What the runtime does not have, or does not allow."""
    refused = _blocked(Reason.NOT_ALLOWED, list(find_not_allowed(spec, runtime.allowed, namespace)))
    return refused or _find_class(spec, runtime) or _over_ceilings(spec, runtime)


def _blocked(reason: Reason, problems: list[Problem]) -> Blocked | None:
    return Blocked(reason=reason, message=describe(problems)) if problems else None


def _find_class(spec: EndpointSpec, runtime: RuntimeSpec) -> Blocked | None:
    wanted = spec.accelerator
    if wanted is None:
        return None
    classes = {one.name: one for one in runtime.accelerator_classes}
    known = classes.get(wanted.class_name)
    if known is None:
        message = (
            f"spec.accelerator.className: the runtime has no class {wanted.class_name!r}; "
            f"there are: {', '.join(classes) or 'none'}"
        )
        return Blocked(reason=Reason.INVALID_SPEC, message=message)
    if known.per_node and (wanted.count or 0) > known.per_node:
        message = (
            f"spec.accelerator.count: {wanted.count} devices, but a node of class {known.name} "
            f"has {known.per_node}"
        )
        return Blocked(reason=Reason.INVALID_SPEC, message=message)
    return None


def _over_ceilings(spec: EndpointSpec, runtime: RuntimeSpec) -> Blocked | None:
    """An endpoint's servers are held to what one run's actors may be; while it changes over it has twice as many."""
    ceilings = runtime.ceilings
    if ceilings is None:
        return None
    field, replicas = "spec.replicas", spec.replicas
    if spec.scaling is not None:
        field, replicas = "spec.scaling.maxReplicas", spec.scaling.max_replicas
    vllm = spec.engine.vllm if spec.engine is not None else None
    each = 0
    if spec.accelerator is not None:
        each = spec.accelerator.count or (vllm.tensor_parallel if vllm is not None else 1)
    for name, count, bound in (
        (field, replicas, ceilings.actor_replicas),
        ("devices of all servers", replicas * each, ceilings.accelerators),
    ):
        if bound is not None and count > bound:
            message = f"{name}: {count} is asked for, the runtime allows {bound}"
            return Blocked(reason=Reason.CEILING_EXCEEDED, message=message)
    return None


def _known_only(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status without fields that this version does not know (written by another one)."""
    known = {one.alias or name for name, one in EndpointStatus.model_fields.items()}
    return {name: value for name, value in status.items() if name in known}
