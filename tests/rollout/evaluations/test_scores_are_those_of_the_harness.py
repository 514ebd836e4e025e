"""Prompts and scores against what lm-evaluation-harness made of the same rows (``record_harness.py``)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.evaluations.build import build_suite
from rollout.evaluations.scoring import gsm8k, mmlu
from rollout_api.v1alpha1.evaluation import Evaluation

HERE = Path(__file__).parent
GSM8K = HERE.parents[2] / "manifests" / "samples" / "data" / "gsm8k"
GSM8K_STYLES = {
    "gsm8k": ("gsm8k-5shot", "harness"),
    "gsm8k-cot-zeroshot": ("gsm8k-cot-zeroshot", "cot-zeroshot"),
}


def recorded(name):
    lines = (HERE / "recorded" / f"{name}.jsonl").read_text().split("\n")
    origin, *rows = [json.loads(line) for line in lines if line]
    assert origin["lm_eval"] == "0.4.13"
    return rows


def suite_of(name, base_dir, **parameters):
    listed = [{"name": key, "value": value} for key, value in parameters.items()]
    item = {"suite": {"builtin": {"name": name, "parameters": listed}}}
    return build_suite(Evaluation.model_validate(item), base_dir=base_dir)


def digest(prompt):
    return hashlib.sha256(prompt.encode()).hexdigest()


@pytest.mark.parametrize("name", GSM8K_STYLES)
def test_gsm8k_is_asked_with_the_same_examples_in_the_same_words(name):
    rows = recorded(name)
    shots = {"shotsUri": "train.jsonl"}
    source = suite_of(GSM8K_STYLES[name][0], GSM8K, uri="test.jsonl", **shots).source()

    prompts = [digest(row["prompt"]) for row in source.rows(range(len(rows)))]

    assert prompts == [row["prompt"] for row in rows]
    assert len(source) == 1319


@pytest.mark.parametrize("name", GSM8K_STYLES)
def test_gsm8k_is_scored_strictly_and_flexibly_as_the_harness_does(name):
    rows = recorded(name)
    answers = [json.loads(line)["answer"] for line in (GSM8K / "test.jsonl").open()]
    style = gsm8k.STYLES[GSM8K_STYLES[name][1]]

    ours = [
        gsm8k.score_reply(style, row["reply"], answer, cut=False)
        for row, answer in zip(rows, answers, strict=False)
    ]

    for part, theirs in (("strict", "strict-match"), ("flexible", "flexible-extract")):
        found = [one[part] for one in ours]
        assert found == [row["said"][theirs]["exact_match"] for row in rows]
        assert 0 < sum(found) < len(found)
    assert all(one["numeric"] >= one["flexible"] for one in ours)


def test_mmlu_is_asked_and_scored_as_the_harness_does(tmp_path):
    rows = recorded("mmlu-generative")
    dev = [
        {
            "question": f"Which number is {n + 1}?",
            "choices": ["one", "two", "three", "four"],
            "answer": n,
        }
        for n in range(4)
    ]
    for name, held in (("dev", dev), ("test", [row["doc"] for row in rows if row["shots"] == 0])):
        lines = [json.dumps({**row, "subject": "our_own_sums"}) for row in held]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))

    for shots in (0, 4):
        mine = [row for row in rows if row["shots"] == shots]
        suite = suite_of(
            "mmlu-generative", tmp_path, uri="test.jsonl", shotsUri="dev.jsonl", shots=str(shots)
        )
        asked = suite.source().rows(range(len(mine)))
        assert [digest(row["prompt"]) for row in asked] == [row["prompt"] for row in mine]
        scores = [
            mmlu.score_reply(row["reply"], ask["answer"])["exact"]
            for row, ask in zip(mine, asked, strict=True)
        ]
        assert scores == [row["said"]["get_response"]["exact_match"] for row in mine]
        assert 0 < sum(scores) < len(scores)


@given(st.text(max_size=200))
def test_no_reply_breaks_a_scorer(reply):
    for style in gsm8k.STYLES.values():
        found = gsm8k.score_reply(style, reply, "6 * 3 = 18\n#### 18", cut=False)
        assert set(found.values()) <= {0.0, 1.0}
    assert set(mmlu.score_reply(reply, "B").values()) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("reply", "numeric"),
    [
        ("18.00", 1),
        ("$18", 1),
        ("18", 1),
        ("1,8", 1),
        ("9" * 5000, 0),
        ("NaN", 0),
        ("--", 0),
        (",,,", 0),
    ],
)
def test_a_number_counts_however_it_is_written(reply, numeric):
    assert (
        gsm8k.score_reply(gsm8k.STYLES["harness"], reply, "#### 18", cut=False)["numeric"]
        == numeric
    )
