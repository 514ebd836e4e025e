"""One batch, looked at closely: the same numbers as the step that used it, sample by sample."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from debug_kit import (
    GRPO,
    build_config,
    change_config,
    fingerprint,
    make_trajectory,
    record,
)
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.coordinator.calls import results
from rollout.debug.finite import watched_outputs
from rollout.debug.one_batch import inspect_batch
from rollout.errors import RunFailed, SpecError
from rollout.learner.forward.packed_rows import GroupTokens
from rollout.learner.forward.reference import plain_group_logprobs
from rollout.learner.model.policy import load_model
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.weights.digest import load_weights, save_weights


def committed(folder: Path, step: int) -> dict[str, Any]:
    with LedgerReader(folder / "ledger.db") as ledger:
        return ledger.steps()[step - 1].metrics


def norm_of(parameters: list[dict[str, Any]]) -> float:
    return math.sqrt(sum(line["gradient_norm"] ** 2 for line in parameters))


@pytest.mark.parametrize("step", [1, 4, 5])
@pytest.mark.parametrize("algorithm", ["grpo", "sft"])
def test_metrics_and_gradients_are_those_of_the_step_itself(algorithm, step, request) -> None:
    folder = request.getfixturevalue(f"{algorithm}_run")
    before = fingerprint(folder)
    found = inspect_batch(folder, step)
    assert (found["step"], found["committed"], found["state_equal"]) == (step, True, True)
    expected = committed(folder, step)
    assert {name: expected[name] for name in found["metrics"]} == found["metrics"]
    assert norm_of(found["parameters"]) == pytest.approx(expected["gradient_norm"], rel=1e-5)
    assert found["not_finite"] == []
    assert fingerprint(folder) == before


def test_samples_come_in_the_order_of_consumption(grpo_run) -> None:
    found = inspect_batch(grpo_run, 3)
    with LedgerReader(grpo_run / "ledger.db") as ledger:
        views = ledger.samples(3)
    assert [line["place"] for line in found["samples"]] == [view.place for view in views]
    for line, view in zip(found["samples"], views, strict=True):
        assert line["completion"] == view.trajectory.text
        assert (line["ordinal"], line["sample"]) == (
            view.trajectory.ordinal,
            view.trajectory.sample,
        )
        assert (line["reward"], line["num_tokens"]) == (
            view.trajectory.reward,
            len(view.trajectory.token_ids),
        )


def test_samples_add_up_to_the_metrics(grpo_run) -> None:
    found = inspect_batch(grpo_run, 2)
    samples, metrics = found["samples"], found["metrics"]
    assert max(line["mismatch_max"] for line in samples) == pytest.approx(
        metrics["mismatch_abs_max"]
    )
    assert {line["ratio_max"] for line in samples} == {1.0}
    tokens = sum(line["num_tokens"] for line in samples)
    for name in ("entropy", "mismatch_kl"):
        total = sum(line[name] * line["num_tokens"] for line in samples)
        assert total / tokens == pytest.approx(metrics[name], rel=1e-4)
    for group in range(3):
        own = [line["advantage"] for line in samples[group * 4 : group * 4 + 4]]
        assert sum(own) == pytest.approx(0, abs=1e-9)


def test_logprobs_of_a_sample_are_those_of_a_plain_forward(grpo_run, tiny_model) -> None:
    found = inspect_batch(grpo_run, 1)
    with LedgerReader(grpo_run / "ledger.db") as ledger:
        views = ledger.samples(1)
    model = load_model(tiny_model)
    for line, view in zip(found["samples"], views, strict=True):
        own = view.trajectory
        group = GroupTokens(prompt_ids=own.prompt_ids, completion_ids=(own.token_ids,))
        with torch.no_grad():
            plain = plain_group_logprobs(model, [group])
        gap = (torch.tensor(own.actor_logprobs) - plain.logprobs_C).abs().max()
        assert line["mismatch_max"] == pytest.approx(float(gap), abs=1e-5)
        assert line["entropy"] == pytest.approx(float(plain.entropy_C.mean()), abs=1e-5)


def test_weights_are_measured_before_the_step(grpo_run, tiny_model) -> None:
    model = load_weights(tiny_model / "model.safetensors")
    for line in inspect_batch(grpo_run, 1)["parameters"]:
        assert line["weight_norm"] == pytest.approx(float(model[line["name"]].norm()), rel=1e-5)


def test_several_updates_are_followed_to_the_last(tiny_model, tmp_path) -> None:
    folder = tmp_path / "tiny-1"
    algorithm = {"grpo": {"promptsPerStep": 3, "groupSize": 4, "epochs": 2, "miniBatches": 3}}
    record(build_config(folder, tiny_model, {**GRPO, "algorithm": algorithm, "maxSteps": 2}))
    found = inspect_batch(folder, 2)
    expected = committed(folder, 2)
    assert expected["num_updates"] == 6
    assert {name: expected[name] for name in found["metrics"]} == found["metrics"]
    ratios = [line["ratio_max"] for line in found["samples"]]
    assert max(ratios) == pytest.approx(expected["ratio_max"])


def test_rows_show_what_they_teach(sft_run) -> None:
    samples = inspect_batch(sft_run, 2)["samples"]
    assert len(samples) == 3
    assert all(line["reward"] is None and line["ratio_max"] is None for line in samples)
    taught = [line for line in samples if line["entropy"] is not None]
    assert taught
    assert all(line["completion"].strip().isdigit() and line["logprob"] < 0 for line in taught)


def test_a_changed_state_is_told(grpo_run) -> None:
    def set_rate(config: dict) -> None:
        config["spec"]["train"]["optimizer"]["adamw"]["learningRate"] = "2e-3"

    change_config(grpo_run, set_rate)
    assert inspect_batch(grpo_run, 2)["state_equal"] is False
    # Step 3 begins at an anchor: what the run had, whatever the configuration says now.
    assert inspect_batch(grpo_run, 3)["state_equal"] is True


@pytest.mark.parametrize("step", [0, 7])
def test_a_step_that_the_run_does_not_have_is_refused(grpo_run, step) -> None:
    with pytest.raises(SpecError, match="committed steps 1 to 5"):
        inspect_batch(grpo_run, step)


def test_a_run_that_is_over_has_no_next_batch(grpo_run) -> None:
    with pytest.raises(SpecError, match="ended with step 5"):
        inspect_batch(grpo_run, 6)


@pytest.fixture
def failed_run(tiny_model, tmp_path, monkeypatch):
    """A run whose second step met a logprob that is no number, as ledgers from before the check may hold."""
    monkeypatch.setattr(results, "find_wrong_numbers", lambda made: "")

    def make(task, sample):
        made = make_trajectory(task, sample)
        if (task.ordinal, sample) != (4, 2):
            return made
        return replace(made, actor_logprobs=(math.nan,) * len(made.token_ids))

    folder = tmp_path / "tiny-1"
    config = build_config(folder, tiny_model, {**GRPO, "oldLogprobs": "Actor"})
    with pytest.raises(RunFailed, match="rollout debug one-batch"):
        record(config, make)
    return folder


def test_the_step_that_failed_is_shown_and_what_broke_it_is_named(failed_run) -> None:
    found = inspect_batch(failed_run, 2)
    assert (found["committed"], found["state_equal"]) == (False, True)
    assert found["not_finite"][:2] == ["actor logprobs of place 6", "loss term policy_loss"]
    assert not any("learner logprobs" in name for name in found["not_finite"])
    broken = [line["place"] for line in found["samples"] if math.isnan(line["ratio_max"])]
    assert broken == [6]


def test_a_broken_weight_is_named_before_what_it_breaks(grpo_run, tiny_model, tmp_path) -> None:
    changed, name = tmp_path / "model", "model.layers.1.mlp.down_proj.weight"
    shutil.copytree(tiny_model, changed)
    tensors = load_weights(changed / "model.safetensors")
    tensors[name][0, 0] = torch.nan
    (changed / "model.safetensors").unlink()
    save_weights(tensors, changed / "model.safetensors")
    change_config(grpo_run, lambda c: c["resolved"].update(modelPath=str(changed)))
    found = inspect_batch(grpo_run, 1)
    assert found["state_equal"] is False
    assert found["not_finite"][:3] == [
        f"weight {name}",
        "output of model.layers.1.mlp.down_proj",
        "learner logprobs of place 0",
    ]
    assert f"gradient of {name}" in found["not_finite"]
    done = CliRunner().invoke(app, ["debug", "one-batch", str(grpo_run), "--step", "1"])
    assert "not the one that was committed" in done.stderr
    assert f"and {len(found['not_finite']) - 10} more" in done.stderr


def test_the_innermost_module_is_named_and_nothing_stays_hooked() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.LogSigmoid()))
    with watched_outputs(model) as fine:
        model(torch.ones(1, 2))
    with watched_outputs(model) as broken:
        model[1](torch.tensor([torch.nan]))
        model(torch.full((1, 2), torch.inf))
    assert (fine, broken) == ([], ["output of 1.0"])
    assert not any(module._forward_hooks for module in model.modules())


def test_the_command_prints_samples_parameters_and_metrics(grpo_run) -> None:
    done = CliRunner().invoke(app, ["debug", "one-batch", str(grpo_run), "--step", "2"])
    assert done.exit_code == 0, done.output
    for wanted in ("ADVANTAGE", "said 3/0", "model.norm.weight", "mismatch_abs_max"):
        assert wanted in done.stdout
    assert done.stderr == ""


def test_the_command_names_the_tensor_and_its_json_stays_json(failed_run) -> None:
    words = ["debug", "one-batch", str(failed_run), "--step", "2"]
    done = CliRunner().invoke(app, words)
    assert "not finite: actor logprobs of place 6" in done.stderr
    done = CliRunner().invoke(app, [*words, "--output", "json"])

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(done.stdout, parse_constant=refuse)
    assert found["samples"][6]["ratio_max"] is None
    assert found["not_finite"][0] == "actor logprobs of place 6"
