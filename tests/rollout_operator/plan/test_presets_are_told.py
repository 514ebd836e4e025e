"""What presets filled in stands in the status, so that nobody has to know them by heart."""

from worlds import SPEC, World

from rollout_api.v1alpha1.run_status import RunStatus
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.run.plan.preconditions.checks import filled_by_presets

NAMED = {**SPEC, "preset": "qwen2.5-3b@v1+dapo@v1"}


def settings(world):
    return {one["name"]: one["value"] for one in world.status["resolved"]["settings"]}


def test_a_preset_says_what_it_filled_in():
    world = World(spec=NAMED)
    world.settle()
    assert world.status["resolved"]["presets"] == ["qwen2.5-3b@v1", "dapo@v1"]
    told = settings(world)
    assert told["model.dtype"] == "BFloat16"
    assert told["train.microBatchTokens"] == "16384"
    assert told["train.activationCheckpointing"] == "true"
    RunStatus.model_validate(world.status)


def test_what_the_manifest_says_is_not_told_again():
    world = World(spec={**NAMED, "train": {**SPEC["train"], "microBatchTokens": 512}})
    world.settle()
    assert "train.microBatchTokens" not in settings(world)


def test_a_run_without_a_preset_has_nothing_to_tell():
    world = World()
    world.settle()
    assert "resolved" not in world.status
    assert filled_by_presets({**SPEC, "preset": "defaults@v1"}, RuntimeSpec()) == ()


def test_a_preset_that_is_taken_away_is_not_told_any_more():
    world = World(spec=NAMED)
    world.settle()
    world.change(suspend=True, preset=None)
    del world.spec["preset"]
    world.settle(60)
    assert "resolved" not in world.status


def test_it_is_written_once():
    world = World(spec=NAMED)
    world.settle()
    before = world.writes
    world.settle()
    assert world.writes == before
