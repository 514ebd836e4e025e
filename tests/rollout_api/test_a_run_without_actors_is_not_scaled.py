"""A run that samples nothing has no actors: a number of them is refused by the field, not passed over."""

from __future__ import annotations

import pytest

from rollout_api.checks import check_document

OFFLINE = {
    "algorithm": {"sft": {}},
    "maxSteps": 1,
    "data": {"jsonl": {"uri": "a.jsonl"}},
}
ONLINE = {
    "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
    "environment": {"builtin": {"name": "arithmetic"}},
    "rewards": [{"builtin": {"name": "exact-match"}}],
    "maxSteps": 1,
}
EVALUATIONS = [{"suite": {"builtin": {"name": "arithmetic"}}}]


def problems(train: dict, actors: dict, **others: object) -> list[tuple[str, str]]:
    document = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "r"},
        "spec": {"model": {"uri": "hf://owner/model"}, "train": train, "actors": actors, **others},
    }
    return [(one.field, one.reason) for one in check_document(document)]


@pytest.mark.parametrize(
    ("actors", "field"),
    [
        ({"replicas": 3}, "spec.actors.replicas"),
        ({"autoscale": {"min": 1, "max": 2}}, "spec.actors.autoscale"),
    ],
)
def test_actors_of_a_run_that_has_none_are_refused(actors: dict, field: str) -> None:
    assert problems(OFFLINE, actors) == [(field, "NoActors")]


@pytest.mark.parametrize("replicas", [0, 1])
def test_the_default_and_none_are_taken(replicas: int) -> None:
    assert problems(OFFLINE, {"replicas": replicas}) == []


def test_actors_that_sample_or_evaluate_are_taken() -> None:
    assert problems(ONLINE, {"replicas": 3}) == []
    assert problems(OFFLINE, {"replicas": 3}, evaluations=EVALUATIONS) == []
