"""What belongs to an object of ours, read from the API server: its pods, and what happened to it and to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout.cluster.kinds import RUN, SWEEP
from rollout.cluster.objects import Object, select_pods
from rollout.cluster.stuck import event_order
from rollout.cluster.sweeps import sweep_rows
from rollout_api import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollout.cluster.client import Cluster

BUDGET = "PodDisruptionBudget"
ROLES = ("coordinator", "learner", "actor")


def read_pods(cluster: Cluster, found: Object) -> list[dict[str, Any]]:
    """The pods of an object, by the UID that they carry."""
    return cluster.pods(select_pods(found["metadata"]["uid"]))


def read_events(cluster: Cluster, found: Object, pods: Sequence[Object]) -> list[dict[str, Any]]:
    """Events about the object, its workloads and its pods, oldest first; of a sweep also those about its runs.

    Those of disruption budgets, which have the workloads' names, are left out.
    """
    if found.get("kind") == SWEEP.name:
        return _events_of_sweep(cluster, found)
    run = found["metadata"]["name"]
    workloads = [names.workload_name(run, role) for role in ROLES]
    about = {run, *workloads, *(pod["metadata"]["name"] for pod in pods)}
    told = [one for one in cluster.events(sorted(about)) if _regarded(one)[0] != BUDGET]
    return sorted(told, key=event_order)


def _events_of_sweep(cluster: Cluster, found: Object) -> list[dict[str, Any]]:
    """A run may have the sweep's name, and is another object."""
    about = {(RUN.name, one.name) for one in sweep_rows(found)}
    about.add((SWEEP.name, found["metadata"]["name"]))
    told = cluster.events(sorted({name for _, name in about}))
    mine = [one for one in told if _regarded(one) in about]
    return sorted(mine, key=event_order)


def _regarded(event: Object) -> tuple[str, str]:
    one = event.get("involvedObject") or {}
    return str(one.get("kind", "")), str(one.get("name", ""))
