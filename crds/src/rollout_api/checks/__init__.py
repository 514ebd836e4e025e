"""Plan-time rules: what the schema cannot say, refused before a GPU is spent.

Pure functions of a spec and of known facts. The command line (``validate``, ``plan``), the admission
webhook and the reconciler all call these; each adds the facts it has, and a rule whose fact is
missing stays silent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from rollout_api.checks.ending import nobody_makes_it_again
from rollout_api.checks.facts import NO_FACTS, Facts
from rollout_api.checks.inference.endpoint import check_endpoint, check_written
from rollout_api.checks.pods.cluster import queues_agree
from rollout_api.checks.registry import RULES
from rollout_api.checks.sweeps.sweep import check_sweep
from rollout_api.checks.together import check_together
from rollout_api.checks.unbuilt import check_runtime, check_snapshot
from rollout_api.parse import parse_object
from rollout_api.problems import Problem, problems_from_validation
from rollout_api.v1alpha1.inference.endpoint import RolloutEndpoint
from rollout_api.v1alpha1.objects.kinds import model_of
from rollout_api.v1alpha1.run import RolloutRun, RolloutRunSpec
from rollout_api.v1alpha1.runtime import ClusterRolloutRuntime, RolloutRuntime
from rollout_api.v1alpha1.snapshot import RolloutSnapshot
from rollout_api.v1alpha1.sweep import RolloutSweep

__all__ = ["Facts", "check_document", "check_run", "check_spec", "check_together"]


def check_document(data: Mapping[str, Any], facts: Facts = NO_FACTS) -> tuple[Problem, ...]:
    """Every problem of one document of any kind: its form first, then (if that is right) the rules."""
    version, kind = str(data.get("apiVersion", "")), str(data.get("kind", ""))
    if version != "rollout.dev/v1alpha1":
        fix = "write apiVersion: rollout.dev/v1alpha1, or schema_version: 1 in a local file"
        message = f"expected rollout.dev/v1alpha1, got {version!r}"
        return (Problem(field="apiVersion", reason="UnknownVersion", message=message, fix=fix),)
    try:
        model = model_of(kind)
    except ValueError as error:
        fix = "write kind: RolloutRun, or another kind of rollout.dev"
        return (Problem(field="kind", reason="UnknownKind", message=str(error), fix=fix),)
    try:
        parsed = parse_object(data)
    except ValidationError as error:
        return problems_from_validation(error, model)
    if isinstance(parsed, RolloutRun):
        return check_run(parsed, facts)
    if isinstance(parsed, RolloutRuntime | ClusterRolloutRuntime):
        return tuple(check_runtime(parsed.spec))
    if isinstance(parsed, RolloutSnapshot):
        return tuple(check_snapshot(parsed.spec))
    if isinstance(parsed, RolloutSweep):
        template = data["spec"]["template"]["spec"]
        return tuple(check_sweep(parsed.spec, template, facts, check_spec))
    assert isinstance(parsed, RolloutEndpoint), f"{kind} has rules"
    return (*check_endpoint(parsed.spec), *check_written(parsed.spec))


def check_run(run: RolloutRun, facts: Facts = NO_FACTS) -> tuple[Problem, ...]:
    """Every problem of a parsed run."""
    return (*check_spec(run.spec, facts), *nobody_makes_it_again(run), *queues_agree(run))


def check_spec(spec: RolloutRunSpec, facts: Facts = NO_FACTS) -> tuple[Problem, ...]:
    """Every problem of a run's spec; fields are named from ``spec.`` on."""
    return tuple(_all(spec, facts, RULES))


def _all(spec: RolloutRunSpec, facts: Facts, rules: Sequence[Any]) -> Iterator[Problem]:
    for rule in rules:
        yield from rule(spec, facts)
