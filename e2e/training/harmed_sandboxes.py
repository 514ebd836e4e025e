"""A run in real pods whose sandbox pods are killed while it works: what was seen of them, and what it came to."""

from dataclasses import dataclass
from typing import Any

from watched import Result, WatchedRun, read_result

from cluster.errors import ClusterError

START_SECONDS, LOSS_SECONDS, END_SECONDS = 300.0, 420.0, 600.0
LOST = "kind=infrastructure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What was seen of the run, and what it came to."""

    run: dict[str, Any]
    sandboxes: set[str]
    lost: list[str]
    left: list[str]
    result: Result


def train_and_harm(run: WatchedRun) -> Trained:
    """Kill its sandboxes until an episode has lost one, and let it come to its end."""
    used: set[str] = set()
    run.until(lambda: look(run, used), "a first sandbox pod", START_SECONDS)
    lost = run.until(lambda: harm(run, used), "an episode that lost its sandbox", LOSS_SECONDS)
    run.wait_for_end(END_SECONDS)
    run.wait_for_no_pods(END_SECONDS)
    left = [one["metadata"]["name"] for one in sandbox_pods(run)]
    return Trained(
        run=run.read(),
        sandboxes=used,
        lost=lost,
        left=left,
        result=read_result(run.folder()),
    )


def sandbox_pods(run: WatchedRun) -> list[dict[str, Any]]:
    """Those of the run that are not going."""
    chosen = f"rollout.dev/sandbox-of={run.read()['metadata']['uid']}"
    found = run.kubectl.get("pods", "-l", chosen)["items"]
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


def look(run: WatchedRun, used: set[str]) -> set[str]:
    used |= {one["metadata"]["name"] for one in sandbox_pods(run)}
    return used


def harm(run: WatchedRun, used: set[str]) -> list[str]:
    """Kill what can be killed now; what the coordinator says of attempts that this took."""
    for pod in sandbox_pods(run):
        used.add(pod["metadata"]["name"])
        if any(one.get("ready") for one in pod["status"].get("containerStatuses", ())):
            try:
                run.kill(pod["metadata"]["name"], "sandbox")
            except (ClusterError, KeyError, StopIteration):
                continue  # its episode was over just now
    said = run.log(f"{run.name}-coordinator-0", "coordinator")
    return [line for line in said.splitlines() if LOST in line]
