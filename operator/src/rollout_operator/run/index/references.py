"""What specs name among the objects of our kinds: runtimes, runs and snapshots that a run starts from, runs that are saved. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollout_operator.controller.queue import Key
from rollout_operator.run.plan.preconditions.upstreams import from_runs

RUN, SNAPSHOT, ENDPOINT = "RolloutRun", "RolloutSnapshot", "RolloutEndpoint"


def references_of(namespace: str, spec: Mapping[str, Any]) -> tuple[Key, ...]:
    """Where the objects are, or would be, that a run waits for: whatever becomes of one of them wakes it."""
    runs = sorted({one.get("name", "") for one in from_runs(spec)})
    upstreams = [Key(namespace=namespace, name=name, kind=RUN) for name in runs]
    snapshot = restored_name(spec)
    restored = [Key(namespace=namespace, name=snapshot, kind=SNAPSHOT)] if snapshot else []
    return (*runtime_keys(namespace, spec.get("runtimeRef")), *upstreams, *restored)


def restored_name(spec: Mapping[str, Any]) -> str:
    """The RolloutSnapshot that a run begins with; empty for one that begins with its model."""
    return ((spec.get("restoreFrom") or {}).get("snapshotRef") or {}).get("name", "")


def saved_run(namespace: str, spec: Mapping[str, Any]) -> tuple[Key, ...]:
    """The run that a snapshot is taken of."""
    name = ((spec.get("source") or {}).get("run") or {}).get("name", "")
    return (Key(namespace=namespace, name=name, kind=RUN),) if name else ()


def served_from(namespace: str, spec: Mapping[str, Any]) -> tuple[Key, ...]:
    """The runtime that an endpoint's servers are made by, and the run or the snapshot whose weights they serve."""
    found = [
        Key(namespace=namespace, name=one.get("name", ""), kind=RUN) for one in from_runs(spec)
    ]
    if name := served_snapshot(spec):
        found.append(Key(namespace=namespace, name=name, kind=SNAPSHOT))
    return (*runtime_keys(namespace, spec.get("runtimeRef")), *found)


def served_snapshot(spec: Mapping[str, Any]) -> str:
    """The RolloutSnapshot whose weights an endpoint serves; empty where there is none."""
    return ((spec.get("model") or {}).get("snapshotRef") or {}).get("name", "")


def runtime_keys(namespace: str, reference: Mapping[str, str] | None) -> tuple[Key, ...]:
    """Where a run's runtime may be: what it names, else ``default`` of the namespace or the cluster."""
    inside = Key(namespace=namespace, name="default", kind="RolloutRuntime")
    outside = Key(namespace="", name="default", kind="ClusterRolloutRuntime")
    if reference is None:
        return (inside, outside)
    name = reference.get("name", "")
    if reference.get("kind", "ClusterRolloutRuntime") == "RolloutRuntime":
        return (replace(inside, name=name),)
    return (replace(outside, name=name),)
