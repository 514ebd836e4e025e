"""Where Exact costs a run's sampling, the plan says what for this shape, and that Fast is the offer; elsewhere nothing."""

import json

import pytest
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.engines.batching import candidate_widths, fixed_rows
from rollout.runs.plan.exactness import exact_costs
from rollout_api.v1alpha1.run import RolloutRunSpec


@pytest.fixture
def costs(tmp_path):
    def ask(prompts, group, *, tokens=64, model="qwen3", **spec):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model}))
        train = {
            "algorithm": {"grpo": {"promptsPerStep": prompts, "groupSize": group}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "sampling": {"maxNewTokens": tokens},
            "maxSteps": 4,
        }
        document = {"model": {"uri": "rollout://tiny-adder"}, "train": train, **spec}
        return exact_costs(RolloutRunSpec.model_validate(document), str(tmp_path))

    return ask


@pytest.mark.parametrize(
    ("prompts", "group", "rows", "empty"),
    [(4, 8, 32, 0), (2, 6, 16, 4), (3, 6, 32, 14), (3, 3, 16, 7), (17, 16, 272, 0)],
)
def test_groups_that_share_fixed_slots_are_counted_with_what_is_empty(
    costs, prompts, group, rows, empty
):
    said = costs(prompts, group)
    assert f"{prompts} groups of {group} take {rows} rows of fixed slots, {empty} of them" in said
    assert "numerics.mode: Fast" in said


@pytest.mark.parametrize("group", [2, 3, 8, 40])
@pytest.mark.parametrize("groups", [1, 2, 5, 16])
def test_a_slot_holds_all_samples_and_is_the_least_that_does(group, groups):
    widths = candidate_widths(group, groups)
    for there in range(1, groups + 1):
        rows = fixed_rows(there * group, widths)
        assert rows >= there * group
        assert not any(there * group <= width < rows for width in widths)


def test_a_group_that_has_the_slots_for_itself_costs_nothing(costs):
    assert costs(1, 16) is None


def test_in_fast_there_is_nothing_to_say(costs):
    assert costs(4, 8, numerics={"mode": "Fast"}) is None


def test_a_model_or_setting_that_shares_no_batch_in_either_mode_costs_nothing(costs):
    assert costs(4, 8, model="mistral") is None
    assert costs(4, 8, actors={"engine": {"embedded": {"batchGroups": 1}}}) is None


def test_groups_too_long_for_slots_are_counted_against_those_that_fast_joins(costs):
    said = costs(4, 8, tokens=4097)
    assert "4 groups are decoded one after the other" in said
    assert "up to 4 together" in said


def test_what_a_server_decodes_alone_is_counted_against_what_it_could(costs):
    said = costs(4, 8, actors={"engine": {"vllm": {"maxNumSeqs": 16}}})
    assert "32 samples are decoded one after the other" in said
    assert "up to 16 together" in said


def test_the_command_says_it_of_a_run(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        """\
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: arithmetic}
spec:
  model: {uri: "rollout://tiny-adder"}
  train:
    algorithm: {grpo: {promptsPerStep: 4, groupSize: 8}}
    environment: {builtin: {name: arithmetic}}
    rewards: [{builtin: {name: exact-match}}]
    maxSteps: 4
"""
    )
    done = CliRunner().invoke(app, ["plan", "-f", str(file), "--offline"])
    assert done.exit_code == 0, done.output
    assert "  Exact: a step's 4 groups of 8 take 32 rows of fixed slots" in done.output
