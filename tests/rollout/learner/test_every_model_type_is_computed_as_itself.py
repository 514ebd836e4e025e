"""Tiny models of every causal type that transformers maps: the learner's logprobs are their own."""

from __future__ import annotations

import pytest
import zoo_forms
from zoo_forms import FORMS
from zoo_kit import NAMES, TABLE, measure, read_table, row_of, table

from rollout.learner.forward import attention
from rollout.learner.model import adapter
from rollout.models.experts.families import MLP_BESIDE_EXPERTS
from rollout.weights.digest import load_weights

QUICK = {
    "qwen2": "packed",
    "mistral": "packed",
    "mixtral": "packed",
    "phi3": "packed",
    "starcoder2": "packed",
    "gemma2": "packed",
    "gpt_oss": "packed",
    "qwen3_moe": "packed",
    "glm4_moe": "packed",
    "phimoe": "single",
    "qwen3_5_text": "single",
    "recurrent_gemma": "single",
    "gpt2": "single",
    "bert": "refused",
}


SAID = {"right", "attention only", "no projections", "not by transformers"}


def listed() -> dict[str, str]:
    return {kind: row[0].split(":")[0] for kind, row in read_table().items()}


@pytest.mark.parametrize("kind", QUICK)
def test_a_type_that_users_train_is_right(kind):
    found = measure(kind)

    assert found.outcome == QUICK[kind], found
    assert read_table()[kind] == row_of(found)
    assert set(found.forms.values()) <= SAID
    assert set(found.forms) == (set() if found.outcome == "refused" else set(FORMS))


def test_a_planted_wrong_mask_is_caught(monkeypatch):
    def forgets(*args, sliding_window=None, **kwargs):
        del sliding_window
        return rows(*args, **kwargs)

    rows = attention.rows_attention
    monkeypatch.setattr(attention, "rows_attention", forgets)
    try:
        found = measure("mistral")
    finally:
        monkeypatch.undo()
        attention.register()

    assert found.outcome == "wrong"
    assert found.gap > 0.01


def planted(kind, monkeypatch, place, name, other):
    monkeypatch.setattr(place, name, other)
    return measure(kind)


def test_an_adapter_of_another_scale_is_caught(monkeypatch):
    merge = adapter.merge
    found = planted(
        "qwen2", monkeypatch, adapter, "merge", lambda w, a, b, s: merge(w, a, b, s / 2)
    )
    assert found.forms["adapter"].startswith("wrong")
    assert found.outcome == "wrong"


def test_a_delta_that_loses_a_number_is_caught(monkeypatch):
    def forgets(path):
        tensors = load_weights(path)
        name = max(tensors, key=lambda one: tensors[one].numel())
        tensors[name] = tensors[name].clone()
        tensors[name].view(-1)[5 * tensors[name].shape[-1] :] = 0
        return tensors

    found = planted("qwen2", monkeypatch, zoo_forms, "load_weights", forgets)
    assert found.forms["delta"].startswith("wrong")


def test_layers_that_are_not_computed_again_are_caught(monkeypatch):
    found = planted("qwen2", monkeypatch, zoo_forms, "recompute_activations", lambda model: None)
    assert found.forms["checkpointed"].startswith("wrong")


def test_plan_knows_the_types_whose_adapters_peft_would_read_as_those_of_experts():
    said = {kind for kind, row in read_table().items() if row[1] == "attention only"}

    assert said == MLP_BESIDE_EXPERTS


def test_the_table_names_every_type_and_none_is_wrong():
    outcomes = listed()

    assert set(outcomes) == set(NAMES)
    assert set(outcomes.values()) <= {"packed", "single", "refused", "not built"}
    assert sum(one in {"packed", "single"} for one in outcomes.values()) >= 60


def test_the_page_is_the_one_that_its_rows_give():
    assert TABLE.read_text() == table(read_table())


def test_a_form_that_was_measured_is_right_or_does_not_exist():
    for kind, (outcome, *forms) in read_table().items():
        assert set(forms) <= SAID | {""}, kind
        assert not any(forms) or outcome.startswith(("packed", "single")), kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMES)
def test_the_table_is_true(kind):
    said, row = read_table()[kind], row_of(measure(kind))

    assert row[0].split(":")[0] == said[0].split(":")[0]
    assert all(cell in ("", found) for cell, found in zip(said[1:], row[1:], strict=True)), row
