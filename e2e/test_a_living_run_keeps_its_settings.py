"""The API server itself knows what may change: never, while the run has pods, or at any time."""

import json
from typing import Any

import pytest

from cluster.kubectl import Kubectl
from runs import build_run, install_crds

pytestmark = pytest.mark.control_plane

JSONL = {"jsonl": {"uri": "s3://data/train.jsonl", "digest": "blake3:" + "0" * 64}}
START = {
    "seed": 7,
    "storage": {"uri": "s3://bucket/runs"},
    "managedBy": "rollout.dev/operator",
    "train": {"data": JSONL, "oldLogprobs": "Learner"},
    "actors": {"replicas": 2},
    "env": [{"name": "A", "value": "1"}],
}
NEVER: dict[str, tuple[dict[str, Any], str]] = {
    "another seed": ({"seed": 8}, "seed is immutable"),
    "no seed": ({"seed": None}, "seed is immutable"),
    "other numerics": ({"numerics": {"mode": "Fast"}}, "numerics is immutable"),
    "another bucket": ({"storage": {"uri": "s3://other/runs"}}, "storage is immutable"),
    "no bucket": ({"storage": None}, "storage is immutable"),
    "another controller": ({"managedBy": "example.com/other"}, "managedBy is immutable"),
    "another algorithm": (
        {"train": {"algorithm": {"grpo": {"groupSize": 16}}}},
        "algorithm is immutable",
    ),
    "whose logprobs": ({"train": {"oldLogprobs": "Actor"}}, "oldLogprobs is immutable"),
    "fewer steps": ({"train": {"maxSteps": 300}}, "maxSteps may only grow"),
    "no data": ({"train": {"data": None}}, "data may change its location"),
    "other rows": (
        {"train": {"data": {"jsonl": {"digest": "blake3:" + "1" * 64}}}},
        "a digest that is set stays",
    ),
}
WHEN_SUSPENDED: dict[str, tuple[dict[str, Any], str]] = {
    "another place of the model": ({"model": {"uri": "hf://owner/name"}}, "model is settled"),
    "an adapter": ({"model": {"lora": {}}}, "model is settled"),
    "moved rows": ({"train": {"data": {"jsonl": {"uri": "s3://x/y"}}}}, "all of train but"),
    "another optimizer": (
        {"train": {"optimizer": {"adamw": {"learningRate": "1e-5"}}}},
        "all of train but",
    ),
    "a node selector": ({"actors": {"nodeSelector": {"a": "b"}}}, "all of actors but"),
    "more learners": ({"learner": {"nodes": 2}}, "learner is settled"),
    "an image": ({"actors": {"engine": {"vllm": {"image": "a/b:1"}}}}, "all of actors but"),
    "another runtime": ({"runtimeRef": {"name": "spot"}}, "runtimeRef is settled"),
    "another queue": ({"queueName": "gpus"}, "queueName is settled"),
    "other variables": ({"env": [{"name": "A", "value": "2"}]}, "env is settled"),
    "code": ({"code": {"configMap": {"name": "rewards"}}}, "code is settled"),
    "a preset": ({"preset": "dapo@v1"}, "preset is settled"),
}
ALWAYS: dict[str, dict[str, Any]] = {
    "more actors": {"actors": {"replicas": 8}},
    "autoscaling": {"actors": {"autoscale": {"min": 1, "max": 4}}},
    "suspend": {"suspend": True},
    "limits": {"limits": {"activeSeconds": 3600}},
    "snapshots": {"snapshots": {"everySteps": 5}},
    "evaluations": {"evaluations": [{"suite": {"builtin": {"name": "arithmetic"}}}]},
    "tracking": {"tracking": [{"tensorboard": {}}]},
    "more steps": {"train": {"maxSteps": 500}},
}
ALIVE = {"attempt": 1, "conditions": []}
CONDITION = {"reason": "Suspended", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def suspended(status: str) -> dict[str, Any]:
    return {"attempt": 1, "conditions": [{"type": "Suspended", "status": status, **CONDITION}]}


@pytest.fixture(scope="module")
def server(fake_cluster: Any) -> Kubectl:
    install_crds(fake_cluster.kubectl)
    return fake_cluster.kubectl


@pytest.fixture
def kubectl(server: Kubectl, fake: Kubectl) -> Kubectl:
    fake.apply(build_run(spec=START))
    return fake


def report(kubectl: Kubectl, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    kubectl("patch", "rrun", "arithmetic", "--subresource=status", "--type=merge", "-p", patch)


def change(kubectl: Kubectl, spec: dict[str, Any]) -> str:
    """What the API server says to a change; empty when it takes it. Nothing is changed."""
    patch = json.dumps({"spec": spec})
    answer = kubectl.attempt(
        "patch", "rrun", "arithmetic", "--type=merge", "--dry-run=server", "-p", patch
    )
    return answer.stderr if answer.returncode else ""


def test_what_names_the_run_never_changes(kubectl: Kubectl):
    for status in ({}, ALIVE, suspended("True")):
        report(kubectl, status)
        for what, (spec, words) in NEVER.items():
            assert words in change(kubectl, spec), what


def test_the_kind_of_work_never_changes(kubectl: Kubectl):
    answer = change(kubectl, {"train": None, "evaluate": {}})
    assert "the kind of work is immutable" in answer


def test_what_pods_were_made_from_is_settled_while_there_are_pods(kubectl: Kubectl):
    for status in (ALIVE, suspended("False")):
        report(kubectl, status)
        for what, (spec, words) in WHEN_SUSPENDED.items():
            answer = change(kubectl, spec)
            assert words in answer, what
            assert "suspend the run, wait for its condition Suspended" in answer, what


def test_it_may_change_before_the_first_attempt_and_while_suspended(kubectl: Kubectl):
    for status in ({}, {"attempt": 0}, suspended("True")):
        report(kubectl, status)
        for what, (spec, _) in WHEN_SUSPENDED.items():
            assert not change(kubectl, spec), what


def test_a_change_and_the_resume_may_come_together(kubectl: Kubectl):
    kubectl("patch", "rrun", "arithmetic", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    report(kubectl, suspended("True"))
    assert not change(kubectl, {"suspend": False, "learner": {"nodes": 2}})


def test_a_change_and_the_suspension_may_not(kubectl: Kubectl):
    report(kubectl, ALIVE)
    assert "learner is settled" in change(kubectl, {"suspend": True, "learner": {"nodes": 2}})


def test_live_settings_change_at_any_time(kubectl: Kubectl):
    for status in ({}, ALIVE, suspended("True")):
        report(kubectl, status)
        for what, spec in ALWAYS.items():
            assert not change(kubectl, spec), what


def test_scaling_sets_the_actors_and_nothing_else(kubectl: Kubectl):
    report(kubectl, ALIVE)
    kubectl("scale", "rrun/arithmetic", "--replicas=5")

    spec = kubectl.get("rrun", "arithmetic")["spec"]

    assert spec["actors"]["replicas"] == 5
    assert "learner" not in spec


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"actors": {"labels": {"rollout.dev/role": "x"}}}, "labels of rollout.dev belong"),
        ({"learner": {"labels": {"rollout.dev/run": "x"}}}, "labels of rollout.dev belong"),
        (
            {"actors": {"replicas": 9, "autoscale": {"min": 1, "max": 4}}},
            "replicas lies outside autoscale",
        ),
        ({"actors": {"replicas": 2, "autoscale": {"min": 4, "max": 2}}}, "min must not be above"),
        (
            {
                "actors": {
                    "accelerator": {"class": "h100", "count": 2},
                    "engine": {"vllm": {"tensorParallel": 4}},
                }
            },
            "tensorParallel needs more devices",
        ),
        (
            {"learner": {"processesPerNode": 8, "accelerator": {"class": "h100", "count": 4}}},
            "processesPerNode is more than accelerator.count",
        ),
        ({"model": {"uri": None, "fromRun": {"name": "arithmetic"}}}, "the run waits for itself"),
    ],
)
def test_what_cannot_work_is_refused_by_the_schema(server: Kubectl, spec: Any, words: str):
    document = json.dumps(build_run(spec=spec))
    answer = server.attempt("create", "--dry-run=server", "-f", "-", stdin=document)
    assert answer.returncode != 0
    assert words in answer.stderr
