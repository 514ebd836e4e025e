"""A run's queue stands in its spec or in Kueue's label; where it stands in both, it is the same one."""

from __future__ import annotations

import pytest

from rollout_api.checks import check_document
from rollout_api.names import LABEL_QUEUE


def problems(spec: dict, labels: dict) -> list[tuple[str, str]]:
    base = {
        "model": {"uri": "hf://owner/model"},
        "train": {"algorithm": {"sft": {}}, "maxSteps": 1, "data": {"jsonl": {"uri": "a.jsonl"}}},
    }
    document = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "r", "labels": labels},
        "spec": {**base, **spec},
    }
    return [(one.field, one.reason) for one in check_document(document)]


def test_two_queues_are_refused_by_the_field_and_both_names() -> None:
    assert problems({"queueName": "a"}, {LABEL_QUEUE: "b"}) == [("spec.queueName", "TwoQueues")]


@pytest.mark.parametrize(
    ("spec", "labels"),
    [
        ({}, {}),
        ({"queueName": "a"}, {}),
        ({}, {LABEL_QUEUE: "a"}),
        ({"queueName": "a"}, {LABEL_QUEUE: "a"}),
    ],
)
def test_one_queue_is_taken_wherever_it_stands(spec: dict, labels: dict) -> None:
    assert problems(spec, labels) == []


@pytest.mark.parametrize(
    "name", ["example.com/other", "kueue.x-k8s.io/other", "rollout.dev/Operator"]
)
def test_a_controller_that_nobody_knows_is_refused_and_no_run_is_left_lying(name: str) -> None:
    assert [field for field, _ in problems({"managedBy": name}, {})] == ["spec.managedBy"]


@pytest.mark.parametrize("name", ["rollout.dev/operator", "kueue.x-k8s.io/multikueue"])
def test_a_controller_that_is_known_is_taken(name: str) -> None:
    assert problems({"managedBy": name}, {}) == []
