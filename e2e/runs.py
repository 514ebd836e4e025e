"""RolloutRuns that tests apply, and what they need in a cluster: definitions, a runtime, a StorageClass."""

import copy
from typing import Any

import yamls
from cluster.kubectl import Kubectl
from cluster.paths import REPOSITORY

CRDS = sorted((REPOSITORY / "crds" / "generated").glob("*s.yaml"))
RUNTIME = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "ClusterRolloutRuntime",
    "metadata": {"name": "default"},
    "spec": {"allowedNamespaces": {"from": "All"}, "allowed": {"images": ["registry.example/"]}},
}
STORAGE = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": "standard",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": "kubernetes.io/no-provisioner",
    "volumeBindingMode": "WaitForFirstConsumer",
}
"""A default, as the operator asks for one; it makes no volume."""


def install_crds(kubectl: Kubectl) -> None:
    """Apply the definitions and wait until their kinds are served."""
    kubectl("apply", *(part for crd in CRDS for part in ("-f", str(crd))))
    names = [yamls.read(crd.read_text())["metadata"]["name"] for crd in CRDS]
    kubectl.wait("--for=condition=Established", *(f"crd/{name}" for name in names))


def build_run(name: str = "arithmetic", spec: dict[str, Any] | None = None) -> dict[str, Any]:
    """The smallest GRPO run, with `spec` laid over its own (None takes a field out)."""
    base = {
        "model": {"uri": "rollout://tiny-adder"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 32, "groupSize": 8}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "maxSteps": 400,
        },
    }
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": name},
        "spec": lay_over(base, spec or {}),
    }


def lay_over(base: Any, change: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(change, dict):
        return change
    result = copy.deepcopy(base) if isinstance(base, dict) else {}
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = lay_over(result.get(name), value)
    return result
