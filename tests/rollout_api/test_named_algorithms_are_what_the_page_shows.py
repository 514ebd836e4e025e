"""Each block of docs/how-to/choose-an-algorithm.md is, beside the defaults, exactly its preset."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rollout_api import parse_run, resolve
from rollout_api.algorithm_presets import ALGORITHM_PRESETS
from rollout_api.checks import check_document
from rollout_api.problems import Severity

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "choose-an-algorithm.md"
BLOCKS = dict(
    re.findall(r"^```yaml\n# (\S+@v\d+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)
BASE = {
    "algorithm": {"grpo": {}},
    "environment": {"builtin": {"name": "arithmetic"}},
    "rewards": [{"builtin": {"name": "exact-match"}}],
    "sampling": {"maxNewTokens": 20},
    "maxSteps": 10,
}


def document(train, preset=None):
    spec = {"model": {"uri": "rollout://tiny-adder"}, "train": BASE | train}
    if preset:
        spec["preset"] = preset
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "a"},
        "spec": spec,
    }


def resolved_train(data):
    return resolve(parse_run(data).spec).spec.train


def test_the_page_has_a_block_for_every_name():
    assert set(BLOCKS) == set(ALGORITHM_PRESETS)


@pytest.mark.parametrize("name", ALGORITHM_PRESETS)
def test_the_block_sets_what_the_name_sets(name):
    shown = YAML(typ="safe", pure=True).load(BLOCKS[name])["train"]

    assert resolved_train(document(shown)) == resolved_train(document({}, preset=name))


@pytest.mark.parametrize("name", ALGORITHM_PRESETS)
def test_a_named_algorithm_passes_every_check_before_and_after_it_is_resolved(name):
    data = document({}, preset=name)
    spec = resolve(parse_run(data).spec).spec.model_dump(mode="json", exclude_none=True)

    for given in (data, data | {"spec": spec}):
        found = [p for p in check_document(given) if p.severity is Severity.error]
        assert found == []


def test_names_join_with_a_models_preset_and_the_manifest_wins():
    data = document({"algorithm": {"grpo": {"clipHigh": "0.3"}}}, preset="qwen2.5-7b@v1+dapo@v1")

    spec = resolve(parse_run(data).spec).spec

    assert spec.train.algorithm.grpo.clip_high == 0.3
    assert spec.train.dynamic_sampling.generation_waves_max == 3
    assert spec.train.overlong_penalty.buffer_tokens == 4
    assert spec.train.micro_batch_tokens == 8192
    assert spec.preset == "qwen2.5-7b@v1+dapo@v1"
