"""Pairs and labelled answers: which forms are taken, and what is said about those that are not."""

from __future__ import annotations

import json

import pytest

from rollout.data.build import build_source
from rollout.data.rows.mapping import BadRecord, FieldMapping, map_record, pair_messages
from rollout.errors import DataError
from rollout_api.v1alpha1.data import Data
from rollout_api.v1alpha1.training.algorithms import Algorithm

PAIR = FieldMapping(target="pair")
LABEL = FieldMapping(target="label")


def user(content: str) -> dict:
    return {"role": "user", "content": content}


def said(content: str) -> dict:
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
        {"prompt": "1+1=", "chosen": [said("2")], "rejected": [said("3")]},
        {"chosen": [user("1+1="), said("2")], "rejected": [user("1+1="), said("3")]},
        # A prompt beside whole conversations is theirs: they say it themselves.
        {"prompt": "x", "chosen": [user("1+1="), said("2")], "rejected": [user("1+1="), said("3")]},
    ],
)
def test_a_pair_is_text_or_messages_after_one_prompt(record) -> None:
    row = map_record(PAIR, record)
    messages, chosen, rejected = pair_messages(row)
    assert [(m.role, m.content) for m in messages] == [("user", "1+1=")]
    assert (chosen, rejected) == ("2", "3")
    assert row["prompt"] == "1+1="


def test_a_pair_may_follow_a_conversation_and_bring_a_margin() -> None:
    mapping = FieldMapping(
        target="pair",
        messages_field="chat",
        chosen_field="good",
        rejected_field="bad",
        margin_field="gap",
        system_prompt="be brief",
    )
    chat = [user("a"), said("b"), user("c")]
    row = map_record(mapping, {"chat": chat, "good": "x", "bad": "y", "gap": 2})
    assert [m["role"] for m in row["messages"]] == ["system", "user", "assistant", "user"]
    assert (row["chosen"], row["rejected"], row["margin"]) == ("x", "y", 2.0)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"prompt": "p", "chosen": "a", "rejected": "a"}, "equal answers"),
        ({"prompt": "p", "chosen": [said("a")], "rejected": [said("a")]}, "equal answers"),
        ({"prompt": "p", "chosen": " ", "rejected": "a"}, "'chosen' is empty"),
        ({"prompt": "p", "chosen": "a", "rejected": ""}, "'rejected' is empty"),
        ({"prompt": "p", "chosen": [said("")], "rejected": "a"}, "'content' is empty"),
        ({"prompt": "p", "rejected": "a"}, "'chosen' is missing"),
        ({"prompt": "p", "chosen": 3, "rejected": "a"}, "expected a list of messages, got int"),
        ({"chosen": "b", "rejected": "a"}, "'prompt' is missing"),
        (
            {
                "chosen": [user("p"), said("a"), user("q"), said("b")],
                "rejected": [user("p"), said("c")],
            },
            "expected one message of the assistant after the prompt, got assistant, user, assistant",
        ),
        (
            {"chosen": [user("p")], "rejected": [user("p"), said("c")]},
            "expected one message of the assistant after the prompt, got nothing",
        ),
    ],
)
def test_a_pair_that_is_none_is_a_bad_record(record, says) -> None:
    with pytest.raises(BadRecord, match=says):
        map_record(PAIR, record)


@pytest.mark.parametrize("margin", ["1", True, None, float("inf")])
def test_a_margin_that_is_no_number_is_a_bad_record(margin) -> None:
    mapping = FieldMapping(target="pair", margin_field="gap")
    record = {"prompt": "p", "chosen": "a", "rejected": "b", "gap": margin}
    with pytest.raises(BadRecord, match="expected a finite number"):
        map_record(mapping, record)


@pytest.mark.parametrize(
    ("mapping", "record"),
    [
        (LABEL, {"prompt": "1+1=", "answer": "2", "label": True}),
        (LABEL, {"prompt": "1+1=", "answer": [said("2")], "label": True}),
        (LABEL, {"answer": [user("1+1="), said("2")], "label": True}),
        (
            FieldMapping(target="label", messages_field="chat"),
            {"chat": [user("1+1="), said("2")], "label": True},
        ),
        (
            FieldMapping(target="label", messages_field="prompt", answer_field="completion"),
            {"prompt": [user("1+1=")], "completion": [said("2")], "label": True},
        ),
    ],
)
def test_a_labelled_answer_is_text_or_messages(mapping, record) -> None:
    row = map_record(mapping, record)
    assert [m["content"] for m in row["messages"]] == ["1+1="]
    assert (row["answer"], row["label"]) == ("2", True)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"prompt": "p", "answer": "a", "label": 1}, "expected true or false, got 1"),
        ({"prompt": "p", "answer": "a", "label": "yes"}, "expected true or false, got 'yes'"),
        ({"prompt": "p", "answer": "a"}, "'label' is missing"),
        ({"prompt": "p", "answer": "", "label": True}, "'answer' is empty"),
        ({"prompt": "p", "label": True}, "'answer' is missing"),
    ],
)
def test_a_label_or_answer_that_is_none_is_a_bad_record(record, says) -> None:
    with pytest.raises(BadRecord, match=says):
        map_record(LABEL, record)


@pytest.mark.parametrize(
    ("algorithm", "target"),
    [
        ({"sft": {}}, "answer"),
        ({"dpo": {}}, "pair"),
        ({"ipo": {}}, "pair"),
        ({"rm": {}}, "pair"),
        ({"kto": {}}, "label"),
        ({"grpo": {}}, "none"),
    ],
)
def test_each_algorithm_names_what_it_learns_from(algorithm, target) -> None:
    assert Algorithm.model_validate(algorithm).traits.row == target


def test_bad_pairs_stop_the_run_by_line_or_are_skipped_and_counted(tmp_path) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"prompt": "p", "chosen": "a", "rejected": "b"},
        {"prompt": "p", "chosen": "a", "rejected": "a"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    fails = Data.model_validate({"jsonl": {"uri": str(path)}})
    with pytest.raises(DataError, match=r"pairs.jsonl:2: .*equal answers"):
        build_source(fails, target="pair")
    skips = Data.model_validate({"jsonl": {"uri": str(path)}, "onBadRecord": "Skip"})
    source = build_source(skips, target="pair")
    assert (len(source), source.bad.num_records) == (1, 1)
