"""vLLM's sleep levels are written, and have run on no device: every way to ask for them is refused with its reason."""

import pytest

from rollout_api.checks.facts import Facts
from rollout_api.checks.operations import engines_sleep_where_it_is_proven
from rollout_api.checks.unbuilt import check_runtime
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.runtime import RuntimeSpec

DEVICE = {"accelerator": {"className": "h100", "count": 1}}


def told(level, platform="local", model=None, **actors):
    spec = RolloutRunSpec.model_validate(
        {
            "model": {"uri": "hf://a/b", **(model or {})},
            "train": {
                "algorithm": {"grpo": {"promptsPerStep": 8, "groupSize": 4}},
                "environment": {"builtin": {"name": "arithmetic"}},
                "rewards": [{"builtin": {"name": "exact-match"}}],
                "maxSteps": 1,
            },
            "actors": {"engine": {"vllm": {"sleepLevel": level}}, **actors},
        }
    )
    return list(engines_sleep_where_it_is_proven(spec, Facts(platform=platform)))


@pytest.mark.parametrize("level", [1, 2])
def test_every_level_is_refused_by_the_field_that_asks_for_it(level):
    for problems, why in (
        (told(level), "no sleep mode on a CPU"),
        (told(level, "cluster", **DEVICE), "no device in common"),
        (told(level, **DEVICE), "has run on no device yet"),
    ):
        [problem] = problems
        assert (problem.field, problem.reason) == (
            "spec.actors.engine.vllm.sleepLevel",
            "NotSupported",
        )
        assert why in problem.message
        assert "gpuMemoryUtilization" in problem.fix


def test_an_adapters_base_is_not_forgotten():
    [problem] = told(2, model={"lora": {"rank": 8}}, **DEVICE)
    assert "level 2 forgets the base" in problem.message


def test_who_does_not_ask_is_not_refused():
    assert told(0, **DEVICE) == []


def test_a_runtime_cannot_ask_for_it_either():
    spec = RuntimeSpec.model_validate({"engine": {"vllm": {"sleepLevel": 1}}})
    assert [one.field for one in check_runtime(spec)] == ["spec.engine.vllm.sleepLevel"]
