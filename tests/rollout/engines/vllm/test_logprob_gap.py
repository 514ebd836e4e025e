"""How far an actor's log-probabilities are from the learner's, and which files are whole models."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollout.errors import StoreError
from rollout.weights.digest import (
    combine_digests,
    digest_tensor,
    digest_tensors,
    load_weights,
    save_weights,
)
from rollout.weights.verify import max_logprob_gap, tensor_names, wanted_tensors

rows = st.lists(st.lists(st.floats(-20, 0), max_size=5), max_size=4)


def test_the_gap_is_the_largest_difference_of_any_token():
    assert max_logprob_gap([[-1.0, -2.0], [-3.0]], [[-1.0, -2.5], [-2.75]]) == 0.5


@given(rows)
def test_equal_log_probabilities_have_no_gap(logprobs):
    assert max_logprob_gap(logprobs, logprobs) == 0.0


@given(rows.filter(any), st.floats(1e-6, 1.0))
def test_the_gap_finds_one_token_that_differs(logprobs, shift):
    moved = [list(row) for row in logprobs]
    row = next(row for row in moved if row)
    row[-1] -= shift

    assert max_logprob_gap(logprobs, moved) == pytest.approx(shift, rel=1e-6, abs=1e-12)
    assert max_logprob_gap(moved, logprobs) == max_logprob_gap(logprobs, moved)


def test_a_value_that_is_no_number_is_an_infinite_gap():
    assert max_logprob_gap([[-1.0, math.nan]], [[-1.0, -1.0]]) == math.inf


def test_rows_of_different_lengths_are_a_callers_mistake():
    with pytest.raises(ValueError, match="differ in length"):
        max_logprob_gap([[-1.0]], [[-1.0, -2.0]])


def write_model(folder: Path, names: list[str], *, tied: bool = False) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    save_weights({name: torch.zeros(2) for name in names}, folder / "model.safetensors")
    return folder


def test_a_file_without_one_of_the_models_tensors_is_found(tmp_path):
    model = write_model(tmp_path / "m", ["k_proj", "q_proj", "v_proj"])
    part = tmp_path / "part"
    save_weights({"q_proj": torch.zeros(2), "other": torch.zeros(2)}, part)

    assert sorted(wanted_tensors(model) - tensor_names(part)) == ["k_proj", "v_proj"]
    assert wanted_tensors(model) <= tensor_names(model / "model.safetensors")


def test_a_tied_head_may_be_absent(tmp_path):
    part = tmp_path / "part"
    save_weights({"embed": torch.zeros(2)}, part)

    names = ["embed", "lm_head.weight"]
    assert wanted_tensors(write_model(tmp_path / "tied", names, tied=True)) <= tensor_names(part)
    assert wanted_tensors(write_model(tmp_path / "free", names)) - tensor_names(part) == {
        "lm_head.weight"
    }


def test_a_cut_file_is_no_model(tmp_path):
    model = write_model(tmp_path / "m", ["a", "b"])
    whole = (model / "model.safetensors").read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(whole[:-1])

    with pytest.raises(StoreError, match="not a whole safetensors file"):
        tensor_names(cut)


def test_a_version_digest_is_made_of_its_tensors_digests_in_any_order(tmp_path):
    tensors = {"b": torch.arange(3.0), "a": torch.ones(2, 2, dtype=torch.bfloat16)}
    parts = {name: digest_tensor(name, tensor) for name, tensor in tensors.items()}
    save_weights(tensors, tmp_path / "w")

    assert combine_digests(dict(reversed(parts.items()))) == digest_tensors(tensors)
    assert digest_tensors(load_weights(tmp_path / "w")) == digest_tensors(tensors)
    tensors["b"][1] += 1e-6
    assert digest_tensors(tensors) != combine_digests(parts)
