"""Images of a run's learner are taken on one machine, of its ranks on CPUs, and beside nobody's code; the rest is refused by name."""

from __future__ import annotations

import pytest

from rollout_api.checks import Facts, check_document
from rollout_api.problems import Severity

GRPO = {
    "model": {"uri": "rollout://tiny-adder"},
    "train": {
        "algorithm": {"grpo": {}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "maxSteps": 4,
    },
    "numerics": {"mode": "Exact"},
    "snapshots": {"include": ["TrainState", "Process"]},
}


def refused(platform: str = "local", **changed) -> list[str]:
    document = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "run"},
        "spec": {**GRPO, **changed},
    }
    facts = Facts(platform=platform)  # type: ignore[arg-type]
    found = [one for one in check_document(document, facts) if one.severity is Severity.error]
    return [one.message for one in found if one.field == "spec.snapshots.include"]


def test_on_one_machine_it_is_taken():
    assert refused() == []
    assert refused(learner={"processesPerNode": 2}) == []


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"platform": "cluster"}, "in a cluster"),
        ({"learner": {"processesPerNode": 2, "strategy": {"fsdp": {}}}}, "fsdp"),
        ({"learner": {"standby": True}}, "standby"),
        ({"learner": {"accelerator": {"className": "gpu", "count": 1}}}, "devices"),
        ({"numerics": {"mode": "Fast"}}, "Fast"),
        ({"storage": {"uri": "s3://bucket/place"}}, "spec.storage.uri"),
        (
            {
                "train": {
                    **GRPO["train"],
                    "environment": {"builtin": {"name": "calculator"}, "tools": ["python"]},
                }
            },
            "tools",
        ),
        (
            {
                "code": {"path": "code"},
                "train": {**GRPO["train"], "rewards": [{"plugin": {"path": "reward"}}]},
            },
            "plugins",
        ),
        ({"code": {"path": "code"}, "tracking": [{"plugin": {"path": "told"}}]}, "plugins"),
        (
            {
                "code": {"path": "code"},
                "train": {
                    **GRPO["train"],
                    "environment": {"agent": {"command": ["python", "a.py"]}},
                },
            },
            "sandboxes",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_it_is_refused_beside_is_named(changed, word):
    assert any(word in message for message in refused(**changed)), refused(**changed)


def test_what_nobody_keeps_is_refused_as_before():
    for layer in ("Buffer", "EpisodicMemory"):
        [message] = refused(snapshots={"include": ["TrainState", "Process", layer]})
        assert layer in message
        assert "Process" not in message
