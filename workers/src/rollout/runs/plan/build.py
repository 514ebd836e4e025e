"""From documents to a plan: prepare, look up, check with what was found, do the sums."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rollout.common.quantities import parse_quantity
from rollout.errors import DataError, SpecError
from rollout.models.experts.families import ExpertShape
from rollout.runs.manifest import Document
from rollout.runs.plan.arithmetic import Routes, batch_arithmetic
from rollout.runs.plan.exactness import exact_costs
from rollout.runs.plan.facts import model_facts
from rollout.runs.plan.machine import device_bytes, host_bytes
from rollout.runs.plan.transfer import weights_transfer
from rollout.runs.plan.unresolved import (
    Unresolved,
    find_hub_data,
    find_hub_model,
    find_pending,
    find_remote,
)
from rollout.runs.worker_config import choose_dtype, with_dtype
from rollout_api.checks import check_spec
from rollout_api.checks.accelerators.fitting import (
    learner_room,
    loads,
    longest_sequence,
    recomputing,
)
from rollout_api.checks.accelerators.memory import estimates, mirror_bytes, offloaded_bytes
from rollout_api.checks.facts import DataFacts, Facts, ModelFacts
from rollout_api.problems import Severity
from rollout_api.v1alpha1.run import RolloutRunSpec

if TYPE_CHECKING:
    from rollout.runs.resolve import Resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of a plan. ``resolved`` holds digests and token ids; ``memory`` bytes by role and part.

    ``devices``: what each accelerator of this machine is asked to hold, and the longest sequences that the learner's
    takes; empty in a cluster and without accelerators. ``exact_costs``: what sampling in Exact costs, in words; None
    where it costs nothing or nobody can know yet. ``weights``: how new versions come to actors, in words; None where none do.
    """

    name: str
    manifest: Mapping[str, Any]
    source: str
    spec: Mapping[str, Any]
    filled: Sequence[Mapping[str, Any]]
    resolved: Mapping[str, Any]
    unresolved: Sequence[Unresolved]
    arithmetic: Mapping[str, Any]
    memory: Mapping[str, Mapping[str, int]]
    devices: Mapping[str, Any]
    warnings: Sequence[str]
    engine: str
    grade: str
    exact_costs: str | None
    weights: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Bytes of accelerators: of each class of a cluster, and of each of this machine."""

    classes: Mapping[str, int]
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The runs of a file, in the order in which they would run."""

    runs: Sequence[PlannedRun]


def build_plan(
    documents: Sequence[Document], *, offline: bool, devices: Sequence[int] | None = None
) -> Plan:
    """Plan every run. Raises SpecError when a run is refused, or (online) something is missing.

    ``devices``: bytes of the accelerators to plan for; None: those of this machine.
    """
    from rollout.runs.pipeline import order_runs

    there = Hardware(
        classes=_accelerator_bytes(documents),
        devices=device_bytes() if devices is None else tuple(devices),
    )
    ordered = order_runs(documents)
    return Plan(runs=tuple(_plan_run(one, there, offline=offline) for one in ordered))


def _plan_run(document: Document, there: Hardware, *, offline: bool) -> PlannedRun:
    from rollout.runs.identity import grade_of
    from rollout.runs.prepare import prepare_run
    from rollout_api import presets

    prepared = prepare_run(document)
    spec = prepared.spec
    in_cluster = spec.runtime_ref is not None or spec.queue_name is not None
    resolved, unresolved = _resolve(spec, offline=offline)
    facts = _facts(spec, resolved, there, in_cluster=in_cluster)
    computed = _in_its_numbers(spec, facts)
    warnings = _check(document, computed, facts)
    memory = {item.role: dict(item.parts) for item in estimates(computed, facts)}
    if "actor" in memory and facts.model:
        memory["actor"]["mirror (host)"] = mirror_bytes(computed, facts.model)
        memory["learner"]["last version (host)"] = mirror_bytes(computed, facts.model)
    if facts.model and (on_host := offloaded_bytes(computed, facts.model)):
        memory["learner"]["optimizer (host)"] = on_host
    filled = presets.resolve(document_spec(document)).filled
    return PlannedRun(
        name=prepared.name,
        manifest=document.data,
        source=str(Path(document.source).absolute()) if document.source != "<stdin>" else "-",
        spec=spec.model_dump(mode="json", exclude_none=True),
        filled=[{"field": one.path, "value": one.value, "from": one.source} for one in filled],
        resolved=resolved,
        unresolved=unresolved,
        arithmetic=batch_arithmetic(spec, resolved.get("numRows"), _routes(resolved)),
        memory=memory,
        devices=_devices(computed, facts),
        warnings=warnings,
        engine=spec.actors.chosen_engine.name,
        grade=grade_of(spec),
        exact_costs=exact_costs(spec, resolved.get("modelPath")),
        weights=weights_transfer(computed, facts),
    )


def document_spec(document: Document) -> RolloutRunSpec:
    """The spec as written."""
    from rollout_api.parse import parse_run

    return parse_run(document.data).spec


def _resolve(spec: RolloutRunSpec, *, offline: bool) -> tuple[dict[str, Any], list[Unresolved]]:
    """What a look at model and data gives; the rest by field, when looking is not possible."""
    if spec.runtime_ref is None and spec.queue_name is None:
        from rollout.runs.plan.images import require_images_for
        from rollout.runs.plan.sandbox import require_sandbox_for

        require_sandbox_for(spec)
        require_images_for(spec)
    pending = [*find_pending(spec), *(find_remote(spec) if offline else ())]
    if any(item.field != "spec.code" for item in pending):
        hub = (*find_hub_model(spec), *find_hub_data(spec)) if offline else ()
        return {}, [*pending, *hub]
    try:
        return _look(spec, offline=offline), pending
    except (SpecError, DataError) as error:
        unknown = find_hub_model(spec) if isinstance(error, SpecError) else find_hub_data(spec)
        if not offline or not unknown:
            raise
        return {}, [*(replace(one, reason=str(error)) for one in unknown), *pending]


def _look(spec: RolloutRunSpec, *, offline: bool) -> dict[str, Any]:
    from rollout.objects.opening import require_place
    from rollout.runs.fetching.sources import fetch_sources
    from rollout.runs.plan.servers import list_servers
    from rollout.runs.resolve import ResolveRequest, Resolving

    if not offline:
        require_place(spec.storage)
        fetch_sources(spec)
    request = ResolveRequest(
        spec=spec.model_dump(mode="json", exclude_none=True),
        offline=offline,
        loads_rewards=True,
        server_tools=list_servers(spec),
    )
    with tempfile.NamedTemporaryFile(prefix="rollout-plan-", suffix=".log") as log:
        found = Resolving(request, Path(log.name)).wait()
    further = _further(spec, found)
    plugins = {**found.plugin_digests, **found.tracker_digests}
    return {
        "modelPath": found.model_path,
        "modelDigest": found.model_digest,
        "modelRevision": found.model_revision,
        "numParameters": found.num_parameters,
        "contextLength": found.context_length,
        "stopTokenIds": list(found.stop_token_ids),
        "promptTokensMax": found.prompt_tokens_max,
        "dataDigests": found.data_digests,
        "numRows": found.num_rows,
        "numBadRecords": found.num_bad,
        **({"experts": msgspec.to_builtins(found.experts)} if found.experts else {}),
        **({"models": further} if further else {}),
        **({"toolDigests": found.tool_digests} if found.tool_digests else {}),
        **({"pluginDigests": plugins} if plugins else {}),
    }


def _routes(resolved: Mapping[str, Any]) -> Routes | None:
    experts = resolved.get("experts")
    if experts is None:
        return None
    return Routes(
        token_bytes=msgspec.convert(experts, ExpertShape).position_bytes,
        prompt_tokens_max=resolved["promptTokensMax"],
    )


def _further(spec: RolloutRunSpec, found: Resolution) -> dict[str, dict[str, str | None]]:
    """What every further model holds, by the field that names it."""
    from rollout.models.roles import further_models

    return {
        one.field: {
            "digest": found.model_digests[one.role],
            "revision": found.model_revisions.get(one.role),
        }
        for one in further_models(spec)
    }


def _in_its_numbers(spec: RolloutRunSpec, facts: Facts) -> RolloutRunSpec:
    """With the dtype that a run on this machine's accelerators gets where it names none."""
    return with_dtype(spec, choose_dtype(spec, accelerated=True)) if facts.device_bytes else spec


def _devices(spec: RolloutRunSpec, facts: Facts) -> dict[str, Any]:
    """The loads of this machine's accelerators by role, and the longest sequences."""
    found = loads(spec, facts)
    if not found or facts.model is None:
        return {}
    room = learner_room(spec, facts)
    return {
        "loads": [
            {
                "device": load.device,
                "memory": load.memory,
                "held": [[item.role, item.total] for item in load.held],
            }
            for load in found
        ],
        "longestSequence": longest_sequence(spec, facts.model, room),
        "longestSequenceRecomputing": longest_sequence(recomputing(spec), facts.model, room),
    }


def _facts(
    spec: RolloutRunSpec, resolved: Mapping[str, Any], there: Hardware, *, in_cluster: bool
) -> Facts:
    data = None
    if resolved:
        data = DataFacts(
            num_rows=resolved["numRows"], prompt_tokens_max=resolved["promptTokensMax"]
        )
    return Facts(
        platform="cluster" if in_cluster else "local",
        model=_model_facts(spec, resolved),
        data=data,
        accelerator_bytes=there.classes,
        host_bytes=None if in_cluster else host_bytes(),
        device_bytes=() if in_cluster else there.devices,
    )


def _model_facts(spec: RolloutRunSpec, resolved: Mapping[str, Any]) -> ModelFacts | None:
    from rollout.models.presets import find_preset
    from rollout.models.shapes import read_shape

    uri = spec.model.uri or ""
    preset = find_preset(uri) if uri.startswith("hf://") else None
    if not resolved and preset is None:
        return None
    shape = preset.shape if preset and not resolved else read_shape(Path(resolved["modelPath"]))
    return model_facts(shape)


def _accelerator_bytes(documents: Sequence[Document]) -> dict[str, int]:
    """Memory by accelerator class, from the runtimes that lie in the same file or folder."""
    found: dict[str, int] = {}
    for document in documents:
        spec = document.data.get("spec") or {}
        for item in spec.get("acceleratorClasses") or ():
            if "memory" in item:
                found[str(item["name"])] = parse_quantity(str(item["memory"]))
    return found


def _check(document: Document, spec: RolloutRunSpec, facts: Facts) -> list[str]:
    problems = check_spec(spec, facts)
    lines = [f"{one.field}: {one.message}; {one.fix}" for one in problems]
    errors = [
        f"{document.source}:{document.line(one.field)}: {line}"
        for one, line in zip(problems, lines, strict=True)
        if one.severity is Severity.error
    ]
    if errors:
        raise SpecError("the plan is refused:\n  " + "\n  ".join(errors))
    return lines
