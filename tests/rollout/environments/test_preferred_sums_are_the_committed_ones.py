"""The data of the preference samples: what is committed is what the recipe writes, and nothing held out is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout.environments.arithmetic import Arithmetic, ArithmeticSource
from rollout.environments.preferred_sums import labelled_answers, preferred_pairs

FOLDER = Path(__file__).parents[3] / "manifests/samples/data/addition"


@pytest.mark.parametrize(
    ("name", "made"), [("pairs", preferred_pairs), ("labelled-sums", labelled_answers)]
)
def test_the_committed_rows_are_the_ones_that_the_recipe_writes(name, made) -> None:
    rows = [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
    assert rows == list(made())


def test_the_chosen_answer_is_right_and_the_other_is_not() -> None:
    for pair in preferred_pairs():
        left, right = map(int, pair["prompt"].removesuffix("=").split("+"))
        assert int(pair["chosen"]) == left + right != int(pair["rejected"])


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
    assert not held_out & {pair["prompt"] for pair in preferred_pairs()}
