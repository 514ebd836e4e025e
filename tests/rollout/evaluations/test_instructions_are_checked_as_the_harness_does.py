"""IFEval against what lm-evaluation-harness made of the same replies (``record_harness.py``)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parent))

from ifeval_cases import CASES, REPLIES

from rollout.errors import DataError
from rollout.evaluations.build import build_suite
from rollout.evaluations.metrics import measure
from rollout.evaluations.scoring.ifeval.checks import CHECKS
from rollout.evaluations.scoring.ifeval.score import (
    Instruction,
    is_followed,
    loose_variants,
    read_instructions,
    score_reply,
)
from rollout.evaluations.scoring.ifeval.words import count_sentences
from rollout_api.v1alpha1.evaluation import Evaluation

RECORDED = Path(__file__).parent / "recorded" / "ifeval.jsonl"
EVERY = [Instruction(name, given) for name, listed in CASES for given in listed]


def recorded():
    origin, *rows = [json.loads(line) for line in RECORDED.read_text().split("\n") if line]
    assert origin["lm_eval"] == "0.4.13"
    return rows


def test_every_instruction_of_the_data_is_checked_and_recorded():
    assert len(CHECKS) == 25
    assert {name for name, _ in CASES} == set(CHECKS)


def test_every_instruction_is_judged_as_the_harness_judges_it():
    differ, num = [], 0
    for row in recorded():
        instructions = read_instructions(row["doc"])
        for place, _, strict, _, loose in row["said"]:
            reply = REPLIES[place]
            ours = (
                [int(is_followed(one, [reply])) for one in instructions],
                [int(is_followed(one, loose_variants(reply))) for one in instructions],
            )
            num += len(instructions)
            if ours != (strict, loose):
                differ.append((row["doc"]["instruction_id_list"], reply[:60], ours, strict, loose))

    assert not differ, differ[:5]
    assert num > 2000


def test_the_four_metrics_are_equal_to_four_figures():
    rows = [(row, said) for row in recorded() for said in row["said"]]
    parts, theirs = [], []
    for row, said in rows:
        scored = score_reply(REPLIES[said[0]], read_instructions(row["doc"]))
        parts.append([{f"ifeval/{name}": value for name, value in scored.items()}])
        theirs.append(said)
    item = Evaluation.model_validate({"suite": {"builtin": {"name": "ifeval"}}})

    ours = measure(build_suite(item).metrics, parts)

    expected = {
        "prompt_strict": sum(one[1] for one in theirs) / len(theirs),
        "prompt_loose": sum(one[3] for one in theirs) / len(theirs),
        "inst_strict": _flat(one[2] for one in theirs),
        "inst_loose": _flat(one[4] for one in theirs),
    }
    assert {name: round(ours[name]["value"], 4) for name in expected} == {
        name: round(value, 4) for name, value in expected.items()
    }


def _flat(listed):
    values = [value for row in listed for value in row]
    return sum(values) / len(values)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=120))
def test_no_reply_breaks_a_check_and_loose_is_never_stricter(reply):
    for instruction in EVERY:
        strict = is_followed(instruction, [reply])
        assert is_followed(instruction, loose_variants(reply)) >= strict


def test_the_language_of_a_text_is_the_same_every_time():
    doubtful = Instruction("language:response_language", {"language": "no"})

    assert len({is_followed(doubtful, ["hei det er en dag som er god"]) for _ in range(30)}) == 1


@pytest.mark.parametrize(
    ("text", "num"),
    [
        ("", 0),
        ("No end", 1),
        ("One. Two! Three? Four", 4),
        ("Dr. Smith paid $3.50 to St. Paul. Then he left.", 2),
        ('He said "Go." Then "Stop!" And left.', 3),
        ("Wait... what? Yes.", 2),
        ("Wait... What? Yes.", 3),
        ("It is 3. five", 1),
        ("Plan B. He ran.", 2),
        ("George W. Bush spoke.", 1),
        ("one.two.three", 1),
    ],
)
def test_sentences_are_counted_by_rule(text, num):
    assert count_sentences(text) == num


def test_an_instruction_without_its_arguments_is_counted_apart():
    row = {"instruction_id_list": ["keywords:existence", "punctuation:no_comma"]}
    row["kwargs"] = [{"keywords": None}, {}]

    got = score_reply("fine", read_instructions(row))

    assert (got["instructions"], got["inst_strict"], got["unscored"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "expected instruction_id_list and kwargs"),
        ({"instruction_id_list": ["startend:quotation"], "kwargs": []}, "lists of one length"),
        (
            {"instruction_id_list": ["startend:song"], "kwargs": [{}]},
            "'startend:song' is not known",
        ),
    ],
)
def test_a_prompt_that_cannot_be_checked_is_named(tmp_path, row, said):
    (tmp_path / "mine.jsonl").write_text(json.dumps({"prompt": "Say hello", **row}))
    parameters = [{"name": "uri", "value": "mine.jsonl"}]
    item = {"suite": {"builtin": {"name": "ifeval", "parameters": parameters}}}
    suite = build_suite(Evaluation.model_validate(item), base_dir=tmp_path)

    with pytest.raises(DataError, match=f"suite ifeval, prompt 'Say hello': .*{said}"):
        suite.source()
