"""Whether a runtime serves a run's namespace and allows what the run adds: a gate by the rules of the manifest. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rollout_api.checks.allowed import find_not_allowed, find_unserved
from rollout_api.conditions import Reason
from rollout_api.problems import Problem
from rollout_api.v1alpha1.allowed import Allowed
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.runtime import ClusterRuntimeSpec, RuntimeSpec
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.preconditions.checks import describe


def check_namespace(runtime: RuntimeSpec, name: str, namespace: str) -> Blocked | None:
    """A runtime of the whole cluster serves the namespaces that it names."""
    if not isinstance(runtime, ClusterRuntimeSpec):
        return None
    return _blocked(find_unserved(runtime.allowed_namespaces, name, namespace))


def check_allowed(own: RolloutRunSpec, allowed: Allowed | None, namespace: str) -> Blocked | None:
    """What the user's own document adds, before runtime and presets add theirs."""
    return _blocked(find_not_allowed(own, allowed, namespace))


def _blocked(problems: Iterable[Problem]) -> Blocked | None:
    found = list(problems)
    return Blocked(reason=Reason.NOT_ALLOWED, message=describe(found)) if found else None
