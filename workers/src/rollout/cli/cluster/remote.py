"""What a run in pods has written, read where it lies: its pods' logs, and the ledger by its coordinator's own ``rollout``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout.cli.cluster.options import open_cluster, select_pods
from rollout.cli.output import print_line, print_note
from rollout.errors import KubeError, ObjectNotFound, SpecError

if TYPE_CHECKING:
    from rollout.cluster.client import Cluster, ExecResult

RUN_FOLDER = "/var/lib/rollout"
COORDINATOR = "coordinator"
LOGS_AT_ONCE_MAX = 64


def ask_coordinator(
    run: str, command: Sequence[str], context: str | None, namespace: str | None
) -> ExecResult:
    """Run ``rollout COMMAND`` in the pod of a run's coordinator. Raises ObjectNotFound where it has none any more."""
    return run_in_coordinator(run, ["rollout", *command], context, namespace)


def run_in_coordinator(
    run: str, command: Sequence[str], context: str | None, namespace: str | None
) -> ExecResult:
    """Run any command there. Raises as ``ask_coordinator``."""
    from rollout.cluster.kinds import RUN, Reference

    cluster = open_cluster(context, namespace)
    found = cluster.get(Reference(kind=RUN, name=run))
    pod = _coordinator_pod(cluster, run, found["metadata"]["uid"])
    return cluster.run_in(pod, COORDINATOR, list(command))


def print_answer(
    run: str, command: Sequence[str], context: str | None, namespace: str | None
) -> None:
    """The same command, asked of the coordinator; its words are printed as they are, and its exit code is ours."""
    answer = ask_coordinator(run, command, context, namespace)
    for line in answer.stdout.splitlines():
        print_line(line)
    for line in answer.stderr.splitlines():
        print_note(line)
    if answer.code:
        sys.exit(answer.code)


def save_report(run: str, context: str | None, namespace: str | None) -> None:
    """Have the coordinator write its report, and put the page here as ``RUN-report.html``."""
    from rollout.objects.filesystem import write_atomically

    made = ask_coordinator(run, ["runs", "report", RUN_FOLDER], context, namespace)
    if made.code:
        raise KubeError(
            f"the coordinator of {run} could not write its report: {made.stderr.strip()}"
        )
    page = run_in_coordinator(run, ["cat", made.stdout.strip()], context, namespace)
    path = Path(f"{run}-report.html")
    write_atomically(path, page.stdout.encode())
    print_line(str(path))


def print_logs(
    run: str,
    *,
    process: str | None,
    lines: int,
    follow: bool,
    context: str | None,
    namespace: str | None,
) -> None:
    """The ends of the logs of a run's pods; ``process`` is a pod's name without the run's, or a role."""
    from rollout.cluster.kinds import RUN, Reference

    cluster = open_cluster(context, namespace)
    found = cluster.get(Reference(kind=RUN, name=run))
    pods = cluster.pods(select_pods(found["metadata"]["uid"]))
    chosen = _choose(pods, run, process)
    if follow and len(chosen) > 1:
        known = ", ".join(label for label, _, _ in chosen)
        raise SpecError(f"--follow reads one at a time; name it with --process: {known}")
    for label, pod, container in chosen[:LOGS_AT_ONCE_MAX]:
        try:
            for line in cluster.log(pod, container, lines=lines, follow=follow):
                print_line(f"{label}: {line}")
        except KubeError as error:
            print_note(f"{label}: {error}")


def _choose(
    pods: Sequence[dict[str, Any]], run: str, process: str | None
) -> list[tuple[str, str, str]]:
    """Label, pod and container of what is to be read. Raises SpecError where there is none."""
    every = [
        (_label(pod, run, one["name"]), pod, one["name"])
        for pod in pods
        for one in pod["spec"]["containers"]
    ]
    wanted = [
        (label, pod["metadata"]["name"], container)
        for label, pod, container in every
        if process in {None, label, label.partition("/")[0], _role(pod)}
    ]
    if not wanted:
        known = ", ".join(label for label, _, _ in every) or "no pods (they go when a run ends)"
        raise SpecError(f"no log of {process or 'any process'} of {run}; there are: {known}")
    return wanted


def _label(pod: dict[str, Any], run: str, container: str) -> str:
    short = pod["metadata"]["name"].removeprefix(f"{run}-")
    return short if len(pod["spec"]["containers"]) == 1 else f"{short}/{container}"


def _role(pod: dict[str, Any]) -> str | None:
    return pod["metadata"].get("labels", {}).get("rollout.dev/role")


def _coordinator_pod(cluster: Cluster, run: str, uid: str) -> str:
    pods = cluster.pods(select_pods(uid, COORDINATOR))
    living = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]
    if not living:
        raise ObjectNotFound(
            f"rolloutrun/{run} has no coordinator running in {cluster.namespace}: what it wrote lies in its"
            f" volume (persistentvolumeclaim, label rollout.dev/run={run}), its database and its bucket; resume"
            " the run, or mount the volume and read it with rollout runs show PATH"
        )
    return living[0]["metadata"]["name"]
