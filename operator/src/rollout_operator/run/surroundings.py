"""What a spec needs around it, of a run or of an endpoint: its runtime, its namespace's labels, what it names. Reads only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rollout_api.conditions import Reason
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.cache.store import Store
from rollout_operator.errors import NotFound
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import NAMESPACES, resource_of
from rollout_operator.run.index.references import runtime_keys
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.preconditions.allowed import check_namespace, needs_labels
from rollout_operator.run.plan.preconditions.checks import parse_runtime, referenced

Version = tuple[str, int]
"""UID and generation of a runtime: another object of the same name, or of the other kind, counts from one too."""


def find_runtime(
    store: Store, namespace: str, reference: Mapping[str, str] | None
) -> tuple[RuntimeSpec, Version, Blocked | None]:
    """The runtime that a spec names, as the store knows it, or what is wrong with it."""
    for key in runtime_keys(namespace, reference):
        if (found := store.find(key)) is not None:
            version = (found.uid, found.generation)
            parsed = parse_runtime(json.loads(found.spec), key.kind)
            if isinstance(parsed, Blocked):
                return RuntimeSpec(), version, parsed
            return parsed, version, check_namespace(parsed, key.name, namespace)
    wanted = reference or {"kind": "RolloutRuntime or ClusterRolloutRuntime", "name": "default"}
    kind = wanted.get("kind", "ClusterRolloutRuntime")
    message = f"{kind} {wanted['name']!r} does not exist"
    return RuntimeSpec(), ("", 0), Blocked(reason=Reason.RUNTIME_NOT_FOUND, message=message)


async def find_unserved_labels(
    client: KubeClient, runtime: RuntimeSpec, namespace: str, spec: Mapping[str, Any]
) -> Blocked | None:
    """A runtime that serves namespaces by label asks for the labels of this one, each time. Raises KubeError."""
    if not needs_labels(runtime):
        return None
    name = (spec.get("runtimeRef") or {}).get("name", "default")
    found = await client.get(NAMESPACES, None, namespace, metadata_only=True)
    labels = found["metadata"].get("labels") or {}
    return check_namespace(runtime, name, namespace, labels)


async def find_missing(
    client: KubeClient, namespace: str, spec: Mapping[str, Any]
) -> Blocked | None:
    """A Secret or ConfigMap that a spec names and that is not there. Raises KubeError."""
    for kind, name in sorted(set(referenced(spec))):
        try:
            await client.get(resource_of(kind), namespace, name, metadata_only=True)
        except NotFound:
            message = f"{kind} {name!r} does not exist in namespace {namespace}"
            return Blocked(reason=Reason.REFERENCE_NOT_FOUND, message=message, retry_seconds=10)
    return None
