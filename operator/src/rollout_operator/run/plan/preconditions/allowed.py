"""Whether a runtime serves a run's namespace and allows what the run adds: a gate by the rules of the manifest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rollout_api.checks.pods.allowed import find_not_allowed, find_unserved
from rollout_api.conditions import Reason
from rollout_api.problems import Problem
from rollout_api.v1alpha1.pods.allowed import Allowed
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.runtime import ClusterRuntimeSpec, RuntimeSpec
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.preconditions.checks import describe

AGAIN_SECONDS = 10.0
"""Nobody tells the operator that a namespace has other labels."""


def needs_labels(runtime: RuntimeSpec) -> bool:
    """Whether it takes the labels of a namespace to say if it is served."""
    served = runtime.allowed_namespaces if isinstance(runtime, ClusterRuntimeSpec) else None
    return served is not None and served.selector is not None


def check_namespace(
    runtime: RuntimeSpec, name: str, namespace: str, labels: Mapping[str, str] | None = None
) -> Blocked | None:
    """A runtime of the whole cluster serves the namespaces that it names; without ``labels`` those by label pass."""
    if not isinstance(runtime, ClusterRuntimeSpec):
        return None
    gate = _blocked(find_unserved(runtime.allowed_namespaces, name, namespace, labels))
    return gate and (replace(gate, retry_seconds=AGAIN_SECONDS) if labels is not None else gate)


def check_allowed(own: RolloutRunSpec, allowed: Allowed | None, namespace: str) -> Blocked | None:
    """What the user's own document adds, before runtime and presets add theirs."""
    return _blocked(find_not_allowed(own, allowed, namespace))


def _blocked(problems: Iterable[Problem]) -> Blocked | None:
    found = list(problems)
    return Blocked(reason=Reason.NOT_ALLOWED, message=describe(found)) if found else None
