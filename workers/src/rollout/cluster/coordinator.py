"""A command of ours in the pod of a run's coordinator, where its ledger lies. What it takes is the right to ``create pods/exec``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollout.cluster.kinds import RUN, Reference
from rollout.cluster.objects import select_pods
from rollout.errors import ObjectNotFound

if TYPE_CHECKING:
    from rollout.cluster.client import Cluster
    from rollout.cluster.streams import ExecResult

RUN_FOLDER = "/var/lib/rollout"
COORDINATOR = "coordinator"


def ask_coordinator(cluster: Cluster, run: str, command: Sequence[str]) -> ExecResult:
    """Run ``rollout COMMAND`` in the pod of a run's coordinator. Raises ObjectNotFound where it has none any more."""
    return run_in_coordinator(cluster, run, ["rollout", *command])


def run_in_coordinator(cluster: Cluster, run: str, command: Sequence[str]) -> ExecResult:
    """Run any command there. Raises as ``ask_coordinator``."""
    found = cluster.get(Reference(kind=RUN, name=run))
    pod = _find_pod(cluster, run, found["metadata"]["uid"])
    return cluster.run_in(pod, COORDINATOR, list(command))


def _find_pod(cluster: Cluster, run: str, uid: str) -> str:
    pods = cluster.pods(select_pods(uid, COORDINATOR))
    living = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]
    if not living:
        raise ObjectNotFound(
            f"rolloutrun/{run} has no coordinator running in {cluster.namespace}: what it wrote lies in its"
            f" volume (persistentvolumeclaim, label rollout.dev/run={run}), its database and its bucket; resume"
            " the run, or mount the volume and read it with rollout runs show PATH"
        )
    return living[0]["metadata"]["name"]
