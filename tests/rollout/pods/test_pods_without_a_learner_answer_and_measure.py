"""A run without a learner in pods: the coordinator's publishes the one version, actors answer, and results stay."""

from __future__ import annotations

import json
import signal

import psutil
import pytest
from pod_kit import Pods

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

NUM_ROWS = 24
MODEL = {
    "uri": "rollout://tiny-qwen2?hidden=64&layers=1&heads=2&kv_heads=1&intermediate=64&context=64"
}
EMBEDDED = {"engine": {"embedded": {}}}


@pytest.fixture
def pods(tmp_path):
    made: list[Pods] = []

    def make(folder="one", **spec) -> Pods:
        place = tmp_path / folder
        place.mkdir()
        lines = [json.dumps({"prompt": f"{n}+{n % 7}=", "id": n}) for n in range(NUM_ROWS)]
        lines[3] = "{broken"
        (place / "questions.jsonl").write_text("\n".join(lines) + "\n")
        infer = {
            "data": {"jsonl": {"uri": str(place / "questions.jsonl")}},
            "logprobs": True,
            "sampling": {"maxNewTokens": 8},
        }
        chosen = spec or {"infer": infer}
        made.append(Pods(place, train=None, model=MODEL, actors=EMBEDDED, **chosen))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ended(run: Pods):
    return run.until(lambda status: status.outcome is not None, "the end")


def results_of(run: Pods) -> dict[str, bytes]:
    folder = run.cluster.folder / "arithmetic-coordinator-0" / "run" / "results"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_killed_pods_answer_each_row_once_with_the_bytes_of_undisturbed_ones(pods):
    plain = pods("plain")
    coordinator = plain.start("arithmetic-coordinator-0", "coordinator")
    actor = plain.start("arithmetic-actor-0", "actor")
    status = ended(plain)
    assert status.outcome.kind == "Succeeded", status.outcome.message
    assert (status.infer.num_done, status.infer.num_failed) == (NUM_ROWS - 1, 1)
    assert str(plain.cluster.folder) in status.outcome.message
    for pod in (actor, coordinator):
        assert pod.process.poll() is None, "a pod that is done waits"
        assert pod.tell_to_go() == 0, pod.text()
        plain.all.remove(pod)
    untouched = results_of(plain)
    rows = [json.loads(line)["row"] for line in untouched["results.jsonl"].splitlines()]
    assert rows == [n for n in range(NUM_ROWS) if n != 3]

    hurt = pods("hurt")
    coordinator = hurt.start("arithmetic-coordinator-0", "coordinator")
    hurt.until(lambda status: status.policy_version == 0, "the version")
    coordinator.kill()
    hurt.all.remove(coordinator)
    hurt.start("arithmetic-coordinator-0", "coordinator")
    actor = hurt.start("arithmetic-actor-0", "actor")
    hurt.until(lambda status: any(w.role == "actor" for w in status.workers), "the actor")
    actor.kill()
    hurt.all.remove(actor)
    hurt.start("arithmetic-actor-0", "actor")
    assert ended(hurt).outcome.kind == "Succeeded"
    assert results_of(hurt) == untouched


@pytest.mark.slow
def test_a_publisher_that_dies_is_started_again(pods):
    run = pods()
    coordinator = run.start("arithmetic-coordinator-0", "coordinator")
    found: list[psutil.Process] = []
    while not found:
        assert coordinator.process.poll() is None, coordinator.text()
        children = psutil.Process(coordinator.process.pid).children(recursive=True)
        found = [one for one in children if _is_publisher(one)]
    found[0].send_signal(signal.SIGKILL)
    status = run.until(lambda status: status.policy_version == 0, "the version")
    assert status.outcome is None


def _is_publisher(process: psutil.Process) -> bool:
    try:
        return "rollout.entrypoints.model" in process.cmdline()
    except psutil.Error:
        return False


def test_a_suite_is_measured_in_pods(pods):
    suite = {"suite": {"builtin": {"name": "arithmetic"}}, "maxPrompts": 16, "maxNewTokens": 4}
    run = pods(evaluate={}, evaluations=[suite])
    run.start("arithmetic-coordinator-0", "coordinator")
    run.start("arithmetic-actor-0", "actor")
    status = ended(run)
    assert status.outcome.kind == "Succeeded", status.outcome.message
    (measured,) = status.evaluations
    assert measured.num_done == measured.num_total == 16
