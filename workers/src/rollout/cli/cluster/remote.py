"""What a run in pods has written, read where it lies: its pods' logs, and the ledger by its coordinator's own ``rollout``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rollout.cli.cluster.options import open_cluster
from rollout.cli.output import print_line, print_note
from rollout.cluster import coordinator
from rollout.cluster.coordinator import RUN_FOLDER
from rollout.errors import KubeError, SpecError

if TYPE_CHECKING:
    from rollout.cluster.streams import ExecResult
    from rollout.report.data import ReportInput

LOGS_AT_ONCE_MAX = 64


def ask_coordinator(
    run: str, command: Sequence[str], context: str | None, namespace: str | None
) -> ExecResult:
    """Run ``rollout COMMAND`` in the pod of a run's coordinator. Raises ObjectNotFound where it has none any more."""
    return coordinator.ask_coordinator(open_cluster(context, namespace), run, command)


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


def read_reports(
    runs: Sequence[str], context: str | None, namespace: str | None
) -> list[tuple[str, ReportInput]]:
    """What several runs are compared by, each from its coordinator. Raises KubeError, ObjectNotFound."""
    from rollout.report.data import ReportInput

    found = []
    for run in runs:
        done = ask_coordinator(run, ["debug", "page", RUN_FOLDER, "report"], context, namespace)
        if done.code:
            raise KubeError(f"the coordinator of {run} says: {done.stderr.strip()}")
        try:
            found.append((run, msgspec.json.decode(done.stdout, type=ReportInput)))
        except msgspec.MsgspecError as error:
            raise KubeError(
                f"the coordinator of {run} did not answer as this version does: {error}; its image is that of another"
                " version: compare the reports of `rollout runs report RUN --cluster`"
            ) from error
    return found


def save_report(run: str, context: str | None, namespace: str | None) -> None:
    """Have the coordinator write its report, and put the page here as ``RUN-report.html``."""
    from rollout.objects.filesystem import write_atomically

    made = ask_coordinator(run, ["runs", "report", RUN_FOLDER], context, namespace)
    if made.code:
        raise KubeError(
            f"the coordinator of {run} could not write its report: {made.stderr.strip()}"
        )
    page = coordinator.run_in_coordinator(
        open_cluster(context, namespace), run, ["cat", made.stdout.strip()]
    )
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
    from rollout.cluster.reading import read_pods

    cluster = open_cluster(context, namespace)
    pods = read_pods(cluster, cluster.get(Reference(kind=RUN, name=run)))
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
