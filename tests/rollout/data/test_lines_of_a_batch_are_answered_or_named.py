"""Every line of a batch is a row or a refused row with a code; hostile lines cost nobody else their answer."""

from __future__ import annotations

import json

import pytest

from rollout.data import batch
from rollout.data.batch import open_batch
from rollout.data.rows.requests import goes_on, row_sampling
from rollout.errors import DataError
from rollout.types import SamplingParams
from rollout_api.v1alpha1.inference.infer import Infer


@pytest.fixture
def opened(tmp_path):
    def open_lines(*lines, **infer):
        path = tmp_path / "rows.jsonl"
        path.write_bytes(b"".join(_bytes(line) + b"\n" for line in lines))
        document = {"data": {"jsonl": {"uri": str(path)}}, **infer}
        return open_batch(Infer.model_validate(document))

    return open_lines


def _bytes(line) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line).encode()


def chat(custom_id="a", **body):
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "hi"}], **body},
    }


def text(custom_id="a", **body):
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": "once upon", **body},
    }


def codes(source) -> list[tuple[int, str]]:
    return [(one.number, one.code) for one in source.refused]


def test_prompts_messages_and_batch_lines_lie_beside_each_other(opened):
    source = opened({"prompt": "one"}, chat(), {"prompt": "two"})

    assert codes(source) == []
    assert [row["messages"][-1]["content"] for row in source.rows(range(3))] == ["one", "hi", "two"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{broken", "invalid_row"),
        (b'{"prompt": "\xff"}', "invalid_row"),
        (b"[1]", "invalid_row"),
        (b'{"prompt": NaN}', "invalid_row"),
        (b"[" * 100_000, "invalid_row"),
        ({"question": "no prompt"}, "invalid_row"),
        ({"prompt": ""}, "invalid_row"),
        (chat(custom_id=7), "invalid_custom_id"),
        (chat(custom_id=""), "invalid_custom_id"),
        (chat(custom_id="x" * 513), "invalid_custom_id"),
        ({**chat(), "method": "GET"}, "invalid_method"),
        ({**chat(), "url": "/v1/embeddings"}, "invalid_url"),
        ({**chat(), "url": ["/v1/completions"]}, "invalid_url"),
        ({**chat(), "url": {}}, "invalid_url"),
        ({**chat(), "body": []}, "invalid_request"),
        ({**chat(), "extra": 1}, "invalid_request"),
        (chat(messages=[]), "invalid_request"),
        (chat(messages=[{"role": "assistant", "content": "hi"}]), "invalid_request"),
        (chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "invalid_request"),
        (chat(tools=[]), "unsupported_parameter"),
        (chat(top_p=0.5), "unsupported_parameter"),
        (chat(n=2), "unsupported_parameter"),
        (chat(max_tokens=0), "invalid_request"),
        (chat(max_tokens=True), "invalid_request"),
        (chat(max_tokens=10**9), "invalid_request"),
        (chat(temperature="hot"), "invalid_request"),
        (chat(temperature=-1), "invalid_request"),
        (chat(stop=["a"] * 17), "invalid_request"),
        (chat(stop=[""]), "invalid_request"),
        (chat(prompt="a"), "unsupported_parameter"),
        (text(prompt=""), "invalid_request"),
        (text(prompt=None), "invalid_request"),
        (text(prompt={"a": 1}), "invalid_request"),
        (text(prompt=["a", "b"]), "unsupported_parameter"),
        (text(prompt=[]), "unsupported_parameter"),
        (text(prompt=[1, 2]), "unsupported_parameter"),
        (text(prompt=[[1, 2]]), "unsupported_parameter"),
        (text(messages=[]), "unsupported_parameter"),
        (text(max_completion_tokens=4), "unsupported_parameter"),
        (text(echo=True), "unsupported_parameter"),
        (text(suffix="end"), "unsupported_parameter"),
        (text(best_of=2), "unsupported_parameter"),
        (text(logprobs=1), "unsupported_parameter"),
    ],
)
def test_a_line_that_cannot_be_answered_is_refused_by_its_code_and_the_next_is_read(
    opened, line, code
):
    source = opened({"prompt": "before"}, line, {"prompt": "after"})

    assert codes(source) == [(1, code)]
    assert list(source.numbers) == [0, 2]
    assert source.refused[0].where == "rows.jsonl:2"
    assert len(source.refused[0].message) <= batch.REASON_CHARACTERS_MAX


def test_a_line_of_completions_is_a_text_to_go_on_with(opened):
    source = opened(text("a", max_tokens=3), text("b", prompt=["once"]), chat("c"), {"prompt": "d"})
    rows = source.rows(range(4))

    assert codes(source) == []
    assert [goes_on(row) for row in rows] == [True, True, False, False]
    assert [row["prompt"] for row in rows] == ["once upon", "once", "hi", "d"]
    assert rows[0]["sampling"] == {"max_new_tokens": 3}


def test_a_row_that_only_says_so_is_no_text_to_go_on_with(opened):
    source = opened({"prompt": "a", "url": "/v1/completions"})

    assert not goes_on(source.rows([0])[0])


def test_of_equal_custom_ids_the_first_is_answered(opened):
    source = opened(chat("a"), chat("b"), chat("a"))

    assert codes(source) == [(2, "duplicate_custom_id")]
    assert source.refused[0].custom_id == "a"


def test_a_refused_line_does_not_take_its_custom_id(opened):
    source = opened(chat("a", tools=[]), chat("a"))

    assert codes(source) == [(0, "unsupported_parameter")]
    assert len(source) == 1


def test_blank_lines_are_no_rows(opened):
    source = opened(b"", {"prompt": "a"}, b"   ", {"prompt": "b"})

    assert (source.num_rows, list(source.numbers)) == (2, [0, 1])


@pytest.mark.parametrize("content", [(), (b"",), (b"  ", b"")])
def test_a_batch_without_rows_is_refused(opened, content):
    with pytest.raises(DataError, match="it is empty"):
        opened(*content)


def test_too_many_rows_are_refused_and_max_prompts_takes_the_first(opened, monkeypatch):
    monkeypatch.setattr(batch, "ROWS_MAX", 3)
    rows = [{"prompt": str(n)} for n in range(4)]

    with pytest.raises(DataError, match="more than 3 rows"):
        opened(*rows)
    assert opened(*rows, maxPrompts=2).num_rows == 2


def test_a_line_says_how_it_is_sampled_where_it_says_so(opened):
    base = SamplingParams(max_new_tokens=64, temperature=1.0, stop=("end",))
    source = opened(chat(max_tokens=5, temperature=0, stop="!"), chat("b"), {"prompt": "a"})
    rows = source.rows(range(3))

    own = row_sampling(rows[0], base)
    assert (own.max_new_tokens, own.temperature, own.stop) == (5, 0.0, ("!",))
    assert row_sampling(rows[1], base) == row_sampling(rows[2], base) == base


def test_a_file_that_changed_under_the_run_is_named(opened, tmp_path):
    source = opened({"prompt": "a"}, {"prompt": "b"})
    (tmp_path / "rows.jsonl").write_text("x" * 40)

    with pytest.raises(DataError, match="the file was changed"):
        source.rows([1])
