"""One rule for every algorithm that clips: a wider lower bound is warned about, with presets laid under."""

import pytest

from rollout_api.checks import check_spec
from rollout_api.v1alpha1.run import RolloutRunSpec

SWAPPED = {"clipLow": "0.3", "clipHigh": "0.2"}
HIGHER = {"clipLow": "0.25"}
TEACHER = {"teacher": {"uri": "rollout://tiny-adder"}}


def warned(algorithm, preset=None):
    train = {
        "algorithm": algorithm,
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "maxSteps": 10,
    }
    spec = {"model": {"uri": "rollout://tiny-adder"}, "train": train}
    found = check_spec(RolloutRunSpec.model_validate({**spec, "preset": preset}))
    return [one.field.rpartition("algorithm.")[2] for one in found if one.reason == "UnusualClip"]


@pytest.mark.parametrize("name", ["ppo", "grpo", "distill"])
def test_swapped_bounds_are_warned_about(name):
    assert warned({name: {**SWAPPED, **(TEACHER if name == "distill" else {})}}) == [
        f"{name}.clipLow"
    ]


def test_a_presets_upper_bound_counts():
    assert warned({"grpo": HIGHER}) == ["grpo.clipLow"]  # above the default upper bound of 0.2
    assert warned({"grpo": HIGHER}, "dapo@v1") == []  # which DAPO raises to 0.28


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_usual_bounds_are_not(name):
    assert warned({name: {}}) == []
