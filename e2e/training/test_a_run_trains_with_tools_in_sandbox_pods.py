"""An agent that has Python run what it writes is trained in real pods: its programs run in sandbox pods, some of which are killed.

A killed sandbox is nobody's doing: the samples are tried again as they were, so that the chain is the one of a run on one
machine, in bubblewrap, that nobody disturbed.
"""

from typing import Any

import pytest
from harmed_sandboxes import Trained, train_and_harm
from watched import Result, Stage, run_here

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(1800)]

STEPS = 3
RUN: dict[str, Any] = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "sums"},
    "spec": {
        "runtimeRef": {"kind": "ClusterRolloutRuntime", "name": "cpu"},
        "model": {"uri": "rollout://tiny-agent?tool=python_exec"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 4}},
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


@pytest.fixture(scope="module")
def trained(stage: Stage) -> Trained:
    return train_and_harm(stage.start(RUN))


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
