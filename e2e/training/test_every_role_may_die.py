"""The arithmetic sample in real pods to the accuracy of a run that nobody disturbs, every role killed on the way."""

from dataclasses import dataclass
from typing import Any

import pytest
from samples import build_manifest
from watched import Result, Stage, WatchedRun, read_result, run_here

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.timeout(10_800)]

STEPS = 120
EVALUATION = {"suite": {"builtin": {"name": "arithmetic"}}, "atStart": True}
START_SECONDS, STEP_SECONDS, END_SECONDS = 900.0, 1800.0, 7200.0
KILLS = (
    (5, "arithmetic-coordinator-0", "coordinator"),
    (20, "arithmetic-actors-0", "engine"),
    (35, "arithmetic-actors-0", "actor"),
    (50, "arithmetic-learner-0", "learner"),
)
"""From which step on, and which container of which pod."""
DELETED = ((65, "coordinator"), (75, "actor"), (85, "learner"))
"""From which step on, and of which role the first pod is taken away as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a run came to, and when it was disturbed."""

    run: dict[str, Any]
    steps_of_kills: list[int]
    result: Result


@pytest.fixture(scope="module")
def disturbed(stage: Stage) -> Trained:
    run = stage.start(_manifest())
    run.until(lambda: run.step() >= 1, "a first step", START_SECONDS)
    steps = []
    for step, pod, container in KILLS:
        _wait_for_step(run, step)
        run.kill(pod, container)
        steps.append(step)
    for step, role in DELETED:
        _wait_for_step(run, step)
        pod = run.pods(role)[0]["metadata"]["name"]
        run.kubectl("delete", "pod", pod, "--grace-period=1", "--wait=false")
        steps.append(step)
    run.wait_for_end(END_SECONDS)
    return Trained(run=run.read(), steps_of_kills=steps, result=read_result(run.folder()))


def _manifest() -> dict[str, Any]:
    return build_manifest(train={"maxSteps": STEPS}, evaluations=[EVALUATION])


def _wait_for_step(run: WatchedRun, step: int) -> None:
    run.until(lambda: run.step() >= step, f"step {step}", STEP_SECONDS)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, disturbed: Trained) -> Result:
    """The same manifest on this machine, after the pods have given it back."""
    return run_here(_manifest(), tmp_path_factory.mktemp("here"))


def test_the_run_succeeds_whoever_dies(disturbed: Trained):
    conditions = {one["type"]: one for one in disturbed.run["status"]["conditions"]}
    assert conditions["Finished"]["reason"] == "Succeeded"
    assert disturbed.run["status"]["attempt"] == 1
    assert len(disturbed.steps_of_kills) == len(KILLS) + len(DELETED)


def test_no_death_changes_the_chain(disturbed: Trained, here: Result):
    assert [step for step, _ in here.chains] == list(range(1, STEPS + 1))
    assert disturbed.result.chains == here.chains


def test_the_held_out_accuracy_is_the_one_of_a_quiet_run(disturbed: Trained, here: Result):
    assert disturbed.result.evaluations == here.evaluations
    (evaluation,) = here.evaluations
    assert evaluation["last"]["value"] > evaluation["first"]["value"]
