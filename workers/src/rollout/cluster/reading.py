"""What belongs to an object of ours, read from the API server: its pods, and what happened to it and to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout.cluster.objects import Object, select_pods
from rollout.cluster.stuck import event_time
from rollout_api import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollout.cluster.client import Cluster

ROLES = ("coordinator", "learner", "actor")


def read_pods(cluster: Cluster, found: Object) -> list[dict[str, Any]]:
    """The pods of an object, by the UID that they carry."""
    return cluster.pods(select_pods(found["metadata"]["uid"]))


def read_events(cluster: Cluster, found: Object, pods: Sequence[Object]) -> list[dict[str, Any]]:
    """Events about the object, its workloads and its pods, oldest first."""
    run = found["metadata"]["name"]
    workloads = [names.workload_name(run, role) for role in ROLES]
    about = {run, *workloads, *(pod["metadata"]["name"] for pod in pods)}
    return sorted(cluster.events(sorted(about)), key=event_time)
