"""The data of the preference samples: what is committed is what the recipe writes, and nothing held out is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout.environments.arithmetic import Arithmetic, ArithmeticSource
from rollout.environments.sample_data.preferred_sums import (
    labelled_answers,
    preferred_pairs,
    varied_pairs,
)

FOLDER = Path(__file__).parents[3] / "manifests/samples/data/addition"


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("pairs", preferred_pairs),
        ("labelled-sums", labelled_answers),
        ("varied-pairs", varied_pairs),
    ],
)
def test_the_committed_rows_are_the_ones_that_the_recipe_writes(name, made) -> None:
    rows = [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
    assert rows == list(made())


@pytest.mark.parametrize("made", [preferred_pairs, varied_pairs])
def test_the_chosen_answer_is_right_and_the_other_is_not(made) -> None:
    for pair in made():
        left, right = map(int, pair["prompt"].removesuffix("=").split("+"))
        assert int(pair["chosen"]) == left + right
        assert pair["rejected"] != pair["chosen"]
        assert pair["rejected"].strip()


def test_varied_mistakes_are_of_every_kind() -> None:
    wrong = [pair["rejected"] for pair in varied_pairs()]
    short = sum(len(text) < 3 for text in wrong)
    long = sum(len(text) > 3 for text in wrong)
    signs = sum(len(text) == 3 and not text.isdecimal() for text in wrong)
    for count in (short, long, signs):
        assert 0.1 < count / len(wrong) < 0.15
    assert len(set(wrong)) > 1000


def test_labels_say_whether_the_answer_is_right_and_about_half_are() -> None:
    right = []
    for row in labelled_answers():
        a, b = map(int, row["prompt"].removesuffix("=").split("+"))
        assert row["label"] is (int(row["answer"]) == a + b)
        right.append(row["label"])
    assert 0.45 < sum(right) / len(right) < 0.55


@pytest.mark.parametrize("split", ["report", "selection"])
def test_no_held_out_sum_is_shown(split) -> None:
    source = ArithmeticSource(Arithmetic(), split)
    held_out = {row["prompt"] for row in source.rows(range(len(source)))}
    for made in (preferred_pairs, varied_pairs):
        assert not held_out & {pair["prompt"] for pair in made()}
