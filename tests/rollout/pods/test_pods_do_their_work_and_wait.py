"""The entry point of every pod, as real processes over TLS: they find each other, work, report and wait."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pod_kit import ENTRY_POINT, SECONDS_MAX, Cluster, Pods
from warm import run_module

from rollout.entrypoints.config import LAST_WORD_VARIABLE, leave_word
from rollout.errors import SpecError
from rollout.models.resolve import resolve_model
from rollout.pods.node import find_node, ordinal_of
from rollout_api.worker import WorkerConfig


@pytest.fixture
def pods(tmp_path):
    made: list[Pods] = []

    def make(**spec) -> Pods:
        made.append(Pods(tmp_path, **spec))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.process
def test_a_learner_of_two_pods_trains_reports_and_idles(pods):
    run = pods(learner={"nodes": 2})
    coordinator = run.start("arithmetic-coordinator-0", "coordinator")
    ranks = [run.learner(0), run.learner(1)]
    status = run.until(lambda s: s.group and s.group.stage in {"Done", "Failed"}, "the group's end")
    assert status.group.stage == "Done", status.group.message + ranks[0].text() + ranks[1].text()
    assert (status.step, status.outcome.kind) == (2, "Succeeded")
    assert status.group.incarnation == 1
    config = WorkerConfig.model_validate_json(
        (run.cluster.folder / "arithmetic-learner-1" / "run" / "worker.json").read_bytes()
    )
    assert config.layout.run_dir.endswith("arithmetic-learner-1/run")
    for pod in (*ranks, coordinator):
        assert pod.process.poll() is None, "a pod that is done waits"
        assert pod.tell_to_go() == 0
    tokens = [(run.cluster.folder / pod.name / "token").read_text() for pod in ranks]
    for pod in run.all:
        assert not any(token in pod.text() for token in tokens)


@pytest.mark.slow
def test_a_lost_rank_is_named_and_the_next_incarnation_goes_on(pods):
    run = pods(learner={"nodes": 2})
    run.start("arithmetic-coordinator-0", "coordinator")
    first = [run.learner(0), run.learner(1)]
    run.until(lambda s: s.group and s.group.stage == "Running", "the group's start")
    first[1].kill()
    run.all.remove(first[1])
    again = run.learner(1)
    status = run.until(lambda s: s.group.stage in {"Failed", "Done"}, "somebody to be named")
    assert "rank" in status.group.message or status.group.stage == "Done"
    for pod in (first[0], again):
        pod.kill()
        run.all.remove(pod)
    run.learner(0, incarnation=2)
    run.learner(1, incarnation=2)
    status = run.until(lambda s: s.group.incarnation == 2 and s.outcome is not None, "the end")
    assert (status.step, status.outcome.kind) == (2, "Succeeded")


@pytest.mark.process
def test_a_pod_that_is_told_to_go_has_the_whole_group_saved_first(pods, tmp_path):
    """The notice comes to the node of rank 1; rank 0, which saves, is on another."""
    run = pods(
        learner={"nodes": 2},
        train={
            "algorithm": {"sft": {"batchSize": 4}},
            "data": {"jsonl": {"uri": str(tmp_path / "rows.jsonl")}},
            "maxSteps": 100_000,
        },
        snapshots={
            "everySteps": 100_000,
            "maxReplaySteps": 100_000,
            "onPreemption": "SnapshotIfTime",
        },
    )
    coordinator = run.start("arithmetic-coordinator-0", "coordinator")
    first = [run.learner(0), run.learner(1)]
    run.until(lambda s: s.step >= 3, "the third step")
    run.all.remove(first[1])
    assert first[1].tell_to_go() == 0, first[1].text()
    status = run.until(lambda s: s.group.stage != "Running", "the other rank's end")
    assert (status.group.stage, status.outcome) == ("Done", None)
    assert status.anchor == f"step-{status.step:06d}"
    assert "told to go: rank 1 works on to the next boundary" in first[1].text()
    assert first[0].process.poll() is None, "the pod that nobody told waits"
    run.all.remove(first[0])
    first[0].kill()
    run.learner(0, incarnation=2)
    run.learner(1, incarnation=2)
    after = run.until(lambda s: s.step > status.step, "the next incarnation")
    assert after.group.incarnation == 2
    began = f"learner started incarnation=2 committed={status.step} anchor={status.anchor}"
    assert began in coordinator.text()


@pytest.mark.slow
def test_an_actor_serves_a_run_and_idles(pods):
    run = pods(
        model={"uri": "rollout://tiny-adder"},
        train={
            "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "sampling": {"maxNewTokens": 4},
            "maxSteps": 2,
        },
    )
    run.start("arithmetic-coordinator-0", "coordinator")
    run.learner(0)
    actor = run.start("arithmetic-actor-0", "actor")
    status = run.until(lambda s: s.outcome is not None, "the end")
    assert (status.step, status.outcome.kind) == (2, "Succeeded")
    run.until(lambda s: any(w.worker == "actor-0" and w.outcome for w in s.workers), "its report")
    assert actor.tell_to_go() == 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("good", "bad", "kind", "says"),
    [
        ("rollout://tiny-qwen2", "rollout://nothing", "ModelNotFound", "model rollout://nothing"),
        ("rollout://tiny-qwen2", "file:///no/such", "ModelNotFound", "/no/such is not a folder"),
        ("rollout://tiny-qwen2", "hf://acme/none", "ModelNotFound", "model hf://acme/none"),
        ("rows.jsonl", "none.jsonl", "DataNotFound", "none.jsonl does not exist"),
    ],
)
def test_a_pod_that_cannot_be_says_why_and_ends(tmp_path, good, bad, kind, says):
    order = Cluster(tmp_path).order("arithmetic-coordinator-0", "coordinator")
    order.write_text(order.read_text().replace(good, bad))
    done, word = be_pod("coordinator", order, tmp_path / "termination-log")
    assert done.returncode == 2
    assert f"error: {word.partition(': ')[2]}" in done.stderr
    assert word.startswith(f"{kind}: ")
    assert says in word


@pytest.mark.process
def test_a_model_that_only_the_workers_pods_lack_is_named_by_them(pods, tmp_path):
    model = resolve_model("rollout://tiny-qwen2").path
    (tmp_path / "model").symlink_to(model)
    run = pods(model={"uri": f"file://{tmp_path / 'model'}"})
    run.start("arithmetic-coordinator-0", "coordinator")
    run.until(lambda status: True, "the coordinator")
    order = run.cluster.order("arithmetic-learner-0", "learner", **run.cluster.spec)
    order.write_text(order.read_text().replace(str(tmp_path / "model"), str(tmp_path / "none")))
    done, word = be_pod("learner", order, tmp_path / "termination-log")
    assert (done.returncode, word.partition(":")[0]) == (2, "ModelNotFound"), done.stderr


def be_pod(role, order, place):
    """Run a pod to its end; how it ended, and the word that the kubelet would find."""
    place.touch()
    done = run_module(
        *(ENTRY_POINT, role, "--order", str(order)),
        folder=place.parent,
        environment={LAST_WORD_VARIABLE: str(place)},
        seconds_max=SECONDS_MAX,
    )
    return done, place.read_text().strip()


def test_without_a_place_for_it_the_last_word_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv(LAST_WORD_VARIABLE, str(tmp_path / "not-there"))
    leave_word(SpecError("x"))
    assert not list(tmp_path.iterdir())


def test_a_last_word_is_one_short_line(tmp_path, monkeypatch):
    place = tmp_path / "log"
    place.touch()
    monkeypatch.setenv(LAST_WORD_VARIABLE, str(place))
    leave_word(SpecError("first\n  second " + "x" * 2000))
    assert place.read_text().startswith("SpecError: first second xxx")
    assert len(place.read_text()) <= 901


def test_signals_are_heeded_before_anything_heavy_is_loaded():
    """A container's first process that has no handler yet does not hear SIGTERM, and waits out its grace."""
    said = subprocess.run(
        [sys.executable, "-c", "import rollout.entrypoints.pod, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout.split()
    loaded = {name.partition(".")[0] for name in said} - set(sys.stdlib_module_names)
    assert not loaded & {"pydantic", "rollout_api", "msgspec", "httpx", "torch", "numpy"}


@pytest.mark.parametrize("missing", ["ROLLOUT_POD_NAME", "ROLLOUT_POD_IP", "ROLLOUT_INCARNATION"])
def test_what_a_template_forgot_is_named(missing):
    given = {
        "ROLLOUT_POD_NAME": "arithmetic-learner-3",
        "ROLLOUT_POD_IP": "10.0.0.7",
        "ROLLOUT_INCARNATION": "12",
    }
    node = find_node(given)
    assert (node.rank, node.group, node.address) == (3, 12, "10.0.0.7:29400")
    del given[missing]
    with pytest.raises(SpecError, match=missing):
        find_node(given)


def test_addresses_of_ipv6_keep_their_port_apart():
    given = {"ROLLOUT_POD_NAME": "l-0", "ROLLOUT_POD_IP": "fd00::7", "ROLLOUT_INCARNATION": "1"}
    assert find_node(given).address == "[fd00::7]:29400"


@pytest.mark.parametrize("name", ["arithmetic", "arithmetic-actor-x"])
def test_a_pod_outside_a_stateful_set_is_refused(name):
    with pytest.raises(SpecError, match="StatefulSet"):
        ordinal_of({"ROLLOUT_POD_NAME": name})
