import json
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.data.build import build_source
from rollout.data.lengths import limit_prompts
from rollout.data.subset import find_overlap, part_of, prompt_hash
from rollout.errors import DataError, SpecError
from rollout_api.v1alpha1.data import Data


def row(text, role="user"):
    return {"messages": [{"role": role, "content": text}], "prompt": text}


@pytest.fixture
def data(tmp_path):
    def build(prompts, name="data.jsonl", **more):
        path = tmp_path / name
        path.write_text("\n".join(json.dumps({"prompt": p, "answer": "x"}) for p in prompts))
        return Data.model_validate({"jsonl": {"uri": str(path)}, **more})

    return build


def prompts_of(source):
    return [row["prompt"] for row in source.rows(range(len(source)))]


def test_train_selection_and_report_part_the_rows(data):
    given_data = data([f"prompt {i}" for i in range(1000)], evalFraction="0.2")

    parts = {
        part: prompts_of(build_source(given_data, part=part))
        for part in ("train", "selection", "report")
    }

    assert sorted(chain.from_iterable(parts.values())) == sorted(f"prompt {i}" for i in range(1000))
    assert 750 < len(parts["train"]) < 850
    assert 60 < len(parts["selection"]) < 140
    assert 60 < len(parts["report"]) < 140


def test_a_prompt_that_occurs_twice_lands_in_one_part(data):
    given_data = data([f"prompt {i % 100}" for i in range(300)], evalFraction="0.3")

    parts = [set(prompts_of(build_source(given_data, part=p))) for p in ("train", "report")]

    assert not parts[0] & parts[1]


@given(st.text(), st.floats(0, 0.9), st.floats(0, 0.9))
def test_holding_out_more_never_moves_a_row_back_into_training(text, one, other):
    low, high = sorted((one, other))

    if part_of(row(text), low) != "train":
        assert part_of(row(text), high) != "train"


def test_a_part_that_is_empty_is_refused(data):
    with pytest.raises(DataError, match="the report part of 1 rows is empty"):
        build_source(data(["a"], evalFraction="0.000001"), part="report")


def test_a_held_out_part_needs_something_held_out(data):
    with pytest.raises(SpecError, match="evalFraction"):
        build_source(data(["a"]), part="report")


def test_nobody_bringing_rows_is_refused():
    with pytest.raises(SpecError, match=r"train\.data is missing"):
        build_source(None)


def test_overlap_is_found_whatever_the_spacing(data):
    train = build_source(data(["What is 1+1?", "b", "c"], name="train.jsonl"))
    evaluation = build_source(data(["What  is\n1+1? ", "d"], name="eval.jsonl"))

    found = find_overlap(train, evaluation)

    assert (found.num_rows, found.num_eval) == (1, 2)
    assert found.examples == ("What  is\n1+1? ",)


def test_the_hash_tells_roles_and_words_apart():
    hashes = {prompt_hash(row(t, r)) for t in ("a b", "ab", "a  c") for r in ("user", "system")}

    assert len(hashes) == 6
    assert prompt_hash(row("a b")) == prompt_hash(row(" a\tb "))


def test_data_that_is_not_what_was_planned_is_refused(data):
    given_data = data(["a"])
    assert given_data.jsonl is not None
    wrong = "blake3:" + "0" * 64

    with pytest.raises(DataError, match=f"expected digest {wrong}"):
        build_source(Data.model_validate({"jsonl": {"uri": given_data.jsonl.uri, "digest": wrong}}))


def test_an_sft_record_without_an_answer_is_a_bad_record(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"prompt": "a"}))
    given_data = Data.model_validate({"jsonl": {"uri": str(path)}})

    assert len(build_source(given_data)) == 1
    with pytest.raises(DataError, match="answerField"):
        build_source(given_data, target="answer")


def test_prompts_that_are_too_long_are_bad_records(data):
    source = build_source(data(["a", "bbbb", "cc"]))

    kept, bad = limit_prompts(source, lambda row: len(row["prompt"]), 2, on_bad="Skip")

    assert prompts_of(kept) == ["a", "cc"]
    assert bad.num_records == 1
    assert kept.digest != source.digest
    assert limit_prompts(source, lambda row: 1, 2)[0] is source
    with pytest.raises(DataError, match="row 1: the prompt 'bbbb' has 4 tokens, at most 2"):
        limit_prompts(source, lambda row: len(row["prompt"]), 2)
