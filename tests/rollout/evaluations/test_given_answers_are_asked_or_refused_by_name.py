"""Suites of given answers: what stands in a row that cannot be scored is named, before anything is."""

from __future__ import annotations

import json
import re

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rollout.environments.prompts import measure_prompts
from rollout.environments.single_turn import SingleTurn
from rollout.errors import DataError, RewardError
from rollout.evaluations.build import build_suite
from rollout.evaluations.scoring.likelihood import ChoiceScore
from rollout.rendering.choices import render_before, render_choices
from rollout.rewards.pipeline import RewardPipeline
from rollout.types import Completion, Message
from rollout_api.v1alpha1.evaluation import Evaluation

GOOD = {"question": "Q?", "subject": "a_b", "choices": ["w", "x x", "y", "zé"], "answer": 1}


def suite_of(folder, rows, name="mmlu", **given):
    (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    listed = [
        {"name": key, "value": value} for key, value in {"uri": "mine.jsonl", **given}.items()
    ]
    item = {"suite": {"builtin": {"name": name, "parameters": listed}}}
    return build_suite(Evaluation.model_validate(item), base_dir=folder)


@pytest.mark.parametrize("name", ["mmlu", "mmlu-continuation"])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"choices": ["w", "x", "y"]}, "four choices for 'Q?'"),
        ({"choices": None}, "four choices for 'Q?'"),
        ({"choices": ["w", "x", None, "z"]}, "four choices for 'Q?'"),
        ({"choices": "wxyz"}, "four choices for 'Q?'"),
        ({"answer": 4}, "answer is '4', expected 0 to 3 or A to D, for 'Q?'"),
        ({"answer": -1}, "answer is '-1', expected 0 to 3"),
        ({"answer": "E"}, "answer is 'E', expected 0 to 3"),
        ({"answer": None}, "answer is None, expected 0 to 3"),
    ],
)
def test_a_row_that_cannot_be_asked_is_named(tmp_path, name, fault, said):
    suite = suite_of(tmp_path, [GOOD, {**GOOD, **fault}], name)

    with pytest.raises(DataError, match=re.escape(said)):
        suite.source()


def test_an_empty_answer_has_no_likelihood_but_its_letter_has(tmp_path):
    row = {**GOOD, "choices": ["w", "", "y", "z"]}

    assert len(suite_of(tmp_path, [row]).source()) == 1
    with pytest.raises(DataError, match="choice 1 is empty for 'Q\\?'"):
        suite_of(tmp_path, [row], "mmlu-continuation").source()


def test_letters_and_texts_stand_behind_a_space(tmp_path):
    [letters] = suite_of(tmp_path, [GOOD]).source().rows([0])
    [texts] = suite_of(tmp_path, [GOOD], "mmlu-continuation").source().rows([0])

    assert (letters["continuations"], letters["answer"]) == ([" A", " B", " C", " D"], "B")
    assert letters["prompt"].endswith(") about a b.\n\nQ?\nA. w\nB. x x\nC. y\nD. zé\nAnswer:")
    assert (texts["continuations"], texts["answer"]) == ([" w", " x x", " y", " zé"], "x x")
    assert texts["prompt"].endswith(
        "The following are questions (with answers) about a b.\n\nQuestion: Q?\nAnswer:"
    )


def test_one_subject_of_a_file_is_asked_alone(tmp_path):
    rows = [GOOD, {**GOOD, "subject": "other", "question": "R?"}]

    [row] = suite_of(tmp_path, rows, subject="other").source().rows([0])

    assert row["question"] == "R?"
    with pytest.raises(DataError, match="has no row of subject 'law'"):
        suite_of(tmp_path, rows, subject="law").source()


def scored(continuations, right, sums):
    completion = Completion(token_ids=(1,), logprobs=(0.0,), finish="stop", choice_logprobs=sums)
    row = {"continuations": continuations, "right": right}
    return ChoiceScore().score([()], [completion], [row])[0]


def test_norms_are_of_the_choice_without_its_space():
    found = scored([" a", " bbbb", " éé"], 2, (-3.0, -8.0, -5.0))

    assert (found["acc"], found["acc_norm"], found["acc_bytes"]) == (
        0,
        0,
        1,
    )  # -1.25 beats -2 by bytes
    assert scored([" a", " bbbb", " éé"], 1, (-3.0, -8.0, -5.0))["acc_norm"] == 1
    assert found["logprob_2"] == -5.0


def test_of_equal_answers_the_first_counts():
    assert scored([" a", " b"], 0, (-1.0, -1.0))["acc"] == 1
    assert scored([" a", " b"], 1, (-1.0, -1.0))["acc"] == 0


def test_an_engine_that_scores_nothing_is_no_wrong_answer(tmp_path):
    suite = suite_of(tmp_path, [GOOD])
    rows = suite.source().rows([0])
    pipeline = RewardPipeline(suite.rewards)
    try:
        with pytest.raises(RewardError, match="engine that scores given tokens"):
            pipeline.score([()], [Completion(token_ids=(1,), logprobs=(), finish="stop")], rows)
    finally:
        pipeline.close()


# -- token boundaries ---------------------------------------------------------------------------------


class Spelling:
    """The part of a renderer that is asked here."""

    def __init__(self, merges):
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokens = [*alphabet, *("".join(pair) for pair in merges)]
        self.tokenizer = Tokenizer(
            models.BPE(vocab={one: place for place, one in enumerate(tokens)}, merges=merges)
        )
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=False
        )
        self.tokenizer.decoder = decoders.ByteLevel()

    def render_text(self, text):
        return tuple(self.tokenizer.encode(text).ids)

    def decode(self, ids):
        return self.tokenizer.decode(list(ids))


def test_a_choice_has_the_tokens_behind_those_of_its_prompt():
    renderer = Spelling([("Ġ", "A")])

    letter, text = render_choices(renderer, "Answer:", [" A", " no"])

    assert (len(letter), renderer.decode(letter)) == (1, " A")
    assert renderer.decode(text) == " no"


def test_white_space_at_the_prompts_end_belongs_to_the_choice():
    renderer = Spelling([("Ġ", "A")])

    [found] = render_choices(renderer, "Answer: ", ["A"])

    assert renderer.decode(found) == " A"
    assert renderer.decode(render_before(renderer, "Answer: ")) == "Answer:"


def test_a_choice_that_is_joined_with_its_prompt_is_named():
    renderer = Spelling([(":", "Ġ")])

    with pytest.raises(
        DataError, match=r"joins the choice ' B' with the end of its prompt 'Answer:'"
    ):
        render_choices(renderer, "Answer:", ["x", " B"])


def test_a_choice_without_any_token_is_named():
    with pytest.raises(DataError, match="the choice '' has no token behind the prompt 'Answer:'"):
        render_choices(Spelling([]), "Answer:", [""])


class Rows:
    def __init__(self, states):
        self.states = states

    def __len__(self):
        return len(self.states)

    def rows(self, positions):
        return [self.states[place] for place in positions]


class Builder:
    def build(self, row):
        return SingleTurn(messages=row["messages"], choices=row["choices"])


def test_the_row_whose_answer_is_joined_is_told_when_a_run_is_planned():
    said = (Message(role="user", content="Answer:"),)
    rows = Rows([{"messages": said, "choices": ("x",)}, {"messages": said, "choices": (" B",)}])

    with pytest.raises(DataError, match="row 1 of 'mmlu': the tokenizer joins the choice ' B'"):
        list(measure_prompts("mmlu", rows, Builder(), Spelling([(":", "Ġ")])))


def test_several_messages_are_no_text_to_score_behind():
    said = (Message(role="system", content="a"), Message(role="user", content="b"))

    with pytest.raises(DataError, match="there are 2 messages"):
        list(
            measure_prompts(
                "x", Rows([{"messages": said, "choices": ("x",)}]), Builder(), Spelling([])
            )
        )
