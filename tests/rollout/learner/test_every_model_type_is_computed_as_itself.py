"""Tiny models of every causal type that transformers maps: the learner's logprobs are their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from zoo_kit import NAMES, measure

from rollout.learner.forward import attention

TABLE = Path(__file__).parents[3] / "docs" / "reference" / "models.md"

QUICK = {
    "qwen2": "packed",
    "mistral": "packed",
    "mixtral": "packed",
    "phi3": "packed",
    "starcoder2": "packed",
    "gemma2": "packed",
    "gpt_oss": "packed",
    "qwen3_moe": "packed",
    "qwen3_5_text": "single",
    "recurrent_gemma": "single",
    "gpt2": "single",
    "bert": "refused",
}


def listed() -> dict[str, str]:
    lines = [line.split("|") for line in TABLE.read_text().splitlines() if line.startswith("| `")]
    return {cells[1].strip(" `"): cells[2].strip().split(":")[0] for cells in lines}


@pytest.mark.parametrize("kind", QUICK)
def test_a_type_that_users_train_is_right(kind):
    found = measure(kind)

    assert found.outcome == QUICK[kind], found
    assert listed()[kind] == QUICK[kind]


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


def test_the_table_names_every_type_and_none_is_wrong():
    outcomes = listed()

    assert set(outcomes) == set(NAMES)
    assert set(outcomes.values()) <= {"packed", "single", "refused", "not built"}
    assert sum(one in {"packed", "single"} for one in outcomes.values()) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMES)
def test_the_table_is_true(kind):
    assert measure(kind).outcome == listed()[kind]
