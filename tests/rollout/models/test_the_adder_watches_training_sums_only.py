"""The warm start of the addition task: what it shows, what it never shows, and the model it begins with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout.environments.arithmetic import Arithmetic, ArithmeticSource
from rollout.environments.sample_data.worked_sums import add_without_carrying, worked_sums
from rollout.errors import SpecError
from rollout.models.builtin.adder import Adder, canonical_adder, write_untrained
from rollout.models.files import digest_model
from rollout.models.shapes import read_shape
from rollout.rendering import build_renderer
from rollout.types import Message

COMMITTED = Path(__file__).parents[3] / "manifests/samples/data/addition/worked-sums.jsonl"


@pytest.mark.parametrize(
    ("left", "right", "total"), [(37, 45, 72), (60, 55, 15), (12, 34, 46), (9, 1, 0), (0, 0, 0)]
)
def test_a_careless_sum_forgets_every_carry(left, right, total):
    assert add_without_carrying(left, right) == total


def test_the_committed_sums_are_the_ones_that_the_recipe_shows():
    rows = [json.loads(line) for line in COMMITTED.read_text().splitlines()]

    assert [(row["prompt"], row["answer"]) for row in rows] == list(worked_sums())


@pytest.mark.parametrize("split", ["report", "selection"])
def test_no_held_out_sum_is_shown(split):
    source = ArithmeticSource(Arithmetic(), split)
    held_out = {row["prompt"] for row in source.rows(range(len(source)))}

    assert not held_out & {prompt for prompt, _ in worked_sums()}


def test_about_a_quarter_of_the_sums_that_carry_are_right():
    right = []
    for prompt, answer in worked_sums():
        left, other = map(int, prompt.removesuffix("=").split("+"))
        if add_without_carrying(left, other) != left + other:
            right.append(int(answer) == left + other)

    assert 0.22 < sum(right) / len(right) < 0.28


def test_the_untrained_adder_is_the_same_every_time_and_as_large_as_it_says(tmp_path):
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    for folder, seed in ((first, 0), (second, 0), (other, 1)):
        folder.mkdir()
        write_untrained(folder, Adder(seed=seed, steps=0))

    assert digest_model(first) == digest_model(second) != digest_model(other)
    assert f"{read_shape(first).num_parameters:,}" in (Adder.shape.__doc__ or "")


def test_every_character_of_a_problem_is_one_token(tmp_path):
    write_untrained(tmp_path, Adder(steps=0))
    renderer = build_renderer(tmp_path)

    ids = renderer.render_prompt([Message(role="user", content="37+45=")])

    assert len(ids) == 6
    assert renderer.decode(ids) == "37+45="


@pytest.mark.parametrize("given", [{"steps": "-1"}, {"steps": "many"}, {"hidden": "64"}])
def test_a_bad_parameter_is_refused(given):
    with pytest.raises(SpecError, match="tiny-adder"):
        canonical_adder(given)
