"""An agent that has Python run what it writes is trained in real pods: its programs run in sandbox pods, some of which are killed.

A killed sandbox is nobody's doing: the samples are tried again as they were, so that the chain is the one of a run on one
machine, in bubblewrap, that nobody disturbed.
"""

from dataclasses import dataclass
from typing import Any

import pytest
from watched import Result, Stage, WatchedRun, read_result, run_here

from cluster.errors import ClusterError

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(1800)]

STEPS = 3
START_SECONDS, LOSS_SECONDS, END_SECONDS = 300.0, 420.0, 600.0
LOST = "kind=infrastructure"
COORDINATOR = "sums-coordinator-0"
RUN: dict[str, Any] = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "sums"},
    "spec": {
        "runtimeRef": {"kind": "ClusterRolloutRuntime", "name": "cpu"},
        "model": {"uri": "rollout://tiny-agent?tool=python_exec"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 4, "groupSize": 4}},
            "environment": {
                "builtin": {
                    "name": "arithmetic",
                    "parameters": [
                        {"name": "digits", "value": "3"},
                        {"name": "operations", "value": "+-*"},
                    ],
                },
                "tools": ["python_exec"],
            },
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "sampling": {"maxNewTokens": 64},
            "maxSteps": STEPS,
        },
        "actors": {"engine": {"embedded": {}}},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What was seen of the run, and what it came to."""

    run: dict[str, Any]
    sandboxes: set[str]
    lost: list[str]
    left: list[str]
    result: Result


@pytest.fixture(scope="module")
def trained(stage: Stage) -> Trained:
    run = stage.start(RUN)
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
    said = run.log(COORDINATOR, "coordinator")
    return [line for line in said.splitlines() if LOST in line]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, trained: Trained) -> Result:
    """The same manifest on this machine, in bubblewrap."""
    return run_here(RUN, tmp_path_factory.mktemp("here"))


def test_the_run_finishes_and_succeeds(trained: Trained):
    conditions = {one["type"]: one for one in trained.run["status"]["conditions"]}
    assert conditions["Finished"]["reason"] == "Succeeded"
    assert trained.run["status"]["attempt"] == 1


def test_its_programs_ran_in_sandbox_pods_of_which_none_is_left(trained: Trained):
    assert len(trained.sandboxes) > 1
    assert trained.left == []


def test_a_killed_sandbox_was_infrastructure_and_is_named(trained: Trained):
    assert all("sandbox pod" in line for line in trained.lost)


def test_the_chain_is_the_one_of_a_run_on_one_machine_that_nobody_disturbed(
    trained: Trained, here: Result
):
    assert [step for step, _ in here.chains] == list(range(1, STEPS + 1))
    assert trained.result.chains == here.chains
