"""The arithmetic sample in real pods: trained, watched, edited while it lives, and one rank killed on the way.

One run is followed from its start to its end; each test asks for one thing that was seen of it.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from samples import build_manifest
from watched import Result, Stage, WatchedRun, read_result, run_here

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(1200)]

STEPS_BEGUN, STEPS = 8, 10
START_SECONDS, GROUP_SECONDS, END_SECONDS = 300.0, 180.0, 300.0
EVALUATION = {"suite": {"builtin": {"name": "arithmetic"}}, "maxPrompts": 64}
PLACE = "/var/lib/rollout"
RANKS = ("arithmetic-learner-0", "arithmetic-learner-1")
CONTAINERS = {
    "coordinator": "arithmetic-coordinator-0",
    "learner": RANKS[0],
    "actor": "arithmetic-actors-0",
    "engine": "arithmetic-actors-0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of the run while it lived, and what it came to."""

    logs: dict[str, str]
    metrics: str
    said_by_exec: str
    said_by_command: str
    stuck_page: str
    edited_generation: int
    step_at_kill: int
    pods_before: set[str]
    pods_after: set[str]
    run: dict[str, Any]
    result: Result


@pytest.fixture(scope="module")
def seen(stage: Stage) -> Seen:
    run = stage.start(_manifest(STEPS_BEGUN))
    run.until(lambda: run.step() >= 1, "a first step", START_SECONDS)
    edited = run.patch({"train": {"maxSteps": STEPS}})
    logs = {container: run.log(pod, container) for container, pod in CONTAINERS.items()}
    before, step = run.uids("learner"), run.step()
    run.kill(RANKS[1], "learner")
    metrics = run.metrics()
    shown = run.kubectl("exec", CONTAINERS["coordinator"], "--", "rollout", "runs", "show", PLACE)
    by_command = _rollout(run, "runs", "show", "arithmetic", "--cluster", "--output", "json")
    page = _rollout(run, "debug", "stuck", "arithmetic")
    run.until(lambda: _is_new_group(run), "a new group", GROUP_SECONDS)
    after = run.uids("learner")
    run.wait_for_end(END_SECONDS)
    run.wait_for_no_pods(GROUP_SECONDS)
    return Seen(
        logs=logs,
        metrics=metrics,
        said_by_exec=shown,
        said_by_command=by_command,
        stuck_page=page,
        edited_generation=edited,
        step_at_kill=step,
        pods_before=before,
        pods_after=after,
        run=run.read(),
        result=read_result(run.folder()),
    )


def _rollout(run: WatchedRun, *arguments: str) -> str:
    """A command of a person who has this cluster's kubeconfig."""
    done = subprocess.run(
        [sys.executable, "-m", "rollout", *arguments, "--namespace", run.kubectl.namespace],
        env={"KUBECONFIG": str(run.kubectl.kubeconfig), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _manifest(steps: int) -> dict[str, Any]:
    return build_manifest(train={"maxSteps": steps}, evaluations=[EVALUATION])


def _is_new_group(run: WatchedRun) -> bool:
    learner = run.status().get("learner") or {}
    return learner.get("incarnation") == 2 and len(run.uids("learner")) == len(RANKS)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, seen: Seen) -> Result:
    """The same manifest on this machine, after the pods have given it back."""
    return run_here(_manifest(STEPS), tmp_path_factory.mktemp("here"))


def test_the_run_finishes_and_succeeds(seen: Seen):
    conditions = {one["type"]: one for one in seen.run["status"]["conditions"]}
    assert (conditions["Finished"]["status"], conditions["Finished"]["reason"]) == (
        "True",
        "Succeeded",
    )
    assert conditions["Ready"]["reason"] == "Succeeded"
    assert seen.result.outcome == "Succeeded"


def test_what_its_pods_were_there_for_is_told_with_its_end(seen: Seen):
    used = seen.run["status"]["progress"]["usage"]
    assert {one["role"] for one in used} == {"Coordinator", "Learner", "Actor"}
    assert all(one["milliseconds"] > 0 and one["requests"] for one in used)


def test_the_coordinator_tells_of_its_progress_under_its_own_name(seen: Seen):
    progress = seen.run["status"]["progress"]
    assert (progress["step"], progress["outcome"]["kind"]) == (STEPS, "Succeeded")
    owners = {one["manager"]: one for one in seen.run["metadata"]["managedFields"]}
    assert set(owners["rollout-coordinator"]["fieldsV1"]["f:status"]) == {"f:progress"}
    assert "f:progress" not in owners["rollout-operator-status"]["fieldsV1"]["f:status"]


def test_an_edit_reaches_the_living_run(seen: Seen):
    assert seen.run["status"]["settingsGeneration"] == seen.edited_generation > 1
    assert seen.run["status"]["progress"]["maxSteps"] == STEPS > STEPS_BEGUN
    assert seen.run["status"]["attempt"] == 1


def test_a_killed_rank_starts_the_group_anew(seen: Seen):
    assert 0 < seen.step_at_kill < STEPS_BEGUN
    assert len(seen.pods_before | seen.pods_after) == 2 * len(RANKS)
    assert seen.run["status"]["learner"]["incarnation"] == 2


def test_the_chain_is_the_one_of_a_run_without_pods_or_kills(seen: Seen, here: Result):
    assert [step for step, _ in here.chains] == list(range(1, STEPS + 1))
    assert seen.result.chains == here.chains


def test_the_accuracy_is_the_one_of_a_run_without_pods_or_kills(seen: Seen, here: Result):
    assert seen.result.accuracy == here.accuracy


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ("coordinator", "listening host="),
        ("learner", "step committed step=1 "),
        ("actor", "child ended module=rollout.entrypoints.prepare code=0"),
        ("engine", "vllm"),
    ],
)
def test_the_log_of_every_container_can_be_read(seen: Seen, container: str, words: str):
    assert words in seen.logs[container]


def test_a_command_runs_in_a_living_pod(seen: Seen):
    assert "hash chain   blake3:" in seen.said_by_exec


def test_the_coordinators_metrics_can_be_scraped(seen: Seen):
    assert 'rollout_worker_alive{worker="actor-0"} 1.0' in seen.metrics


def test_the_commands_of_a_laptop_read_the_run_where_it_is(seen: Seen):
    shown = json.loads(seen.said_by_command)
    assert len(shown["chains"]) >= 1
    assert "Traceback" not in seen.said_by_command
    assert "arithmetic-coordinator-0" in seen.stuck_page
