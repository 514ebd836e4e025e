"""The order of a batch: each row once, none handed out last that may take long, equal beginnings side by side."""

from __future__ import annotations

import json
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from rollout.data.batch import open_batch
from rollout.data.batch_order import BEGINNINGS, RowShapes, plan_order, prompt_text
from rollout_api.v1alpha1.inference.infer import Infer

TEXTS = st.lists(
    st.tuples(
        st.sampled_from(["", "a" * 255, "b" * 256, "c" * 300, "c" * 1024, "d" * 5000]),
        st.text(max_size=30),
    ).map("".join),
    min_size=1,
    max_size=40,
)


def shaped(rows: list[tuple[str, int]]) -> RowShapes:
    shapes = RowShapes()
    for text, new_tokens in rows:
        shapes.add(text, new_tokens)
    return shapes


def windows_of(number: int, window_rows: int) -> list[range]:
    count = max(1, -(-number // window_rows))
    return [range(number * i // count, number * (i + 1) // count) for i in range(count)]


@given(
    rows=st.lists(st.tuples(st.text(max_size=600), st.integers(1, 5000)), max_size=60),
    window_rows=st.integers(1, 20),
)
def test_each_row_goes_out_once_in_its_window_and_none_takes_twice_as_long_as_one_before(
    rows, window_rows
):
    shapes = shaped(rows)

    order = list(plan_order(shapes, window_rows))

    for window in windows_of(len(rows), window_rows):
        part = order[window.start : window.stop]
        assert sorted(part) == list(window)
        least = None
        for position in part:
            assert least is None or shapes.costs[position] < 2 * least
            least = min(shapes.costs[position], least or shapes.costs[position])


@given(texts=TEXTS, new_tokens=st.sampled_from([400, 500]))
def test_rows_of_one_band_that_begin_alike_go_side_by_side(texts, new_tokens):
    shapes = shaped([(text, new_tokens) for text in texts])

    order = list(plan_order(shapes))

    bands = [shapes.costs[position].bit_length() for position in order]
    assert bands == sorted(bands, reverse=True)
    for length in BEGINNINGS:
        begun = [(shapes.costs[n].bit_length(), texts[n][:length]) for n in order]
        assert len([key for key, _ in groupby(begun)]) == len(set(begun))


def test_of_rows_that_begin_alike_the_longer_goes_first_and_equal_ones_as_they_lie():
    shared = "x" * 300
    shapes = shaped([(shared + "a", 90), ("other", 85), (shared + "b" * 9, 90), (shared + "c", 90)])

    assert list(plan_order(shapes)) == [2, 0, 3, 1]


def test_rows_as_short_as_each_other_keep_the_order_of_the_file():
    assert list(plan_order(shaped([(f"{n}+1=", 8) for n in range(10)]))) == list(range(10))


def test_the_tokens_that_a_line_asks_for_count_and_the_order_is_that_of_the_rows(tmp_path):
    def line(number: int, **body):
        messages = [{"role": "user", "content": f"question {number}"}]
        body = {"messages": messages, **body}
        return {"custom_id": f"{number}", "url": "/v1/chat/completions", "body": body}

    lines = [
        line(0, max_tokens=4),
        "{broken",
        line(2, max_tokens=90),
        line(3),
        line(4, max_tokens=20),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines))
    infer = {"data": {"jsonl": {"uri": str(path)}}, "sampling": {"maxNewTokens": 500}}

    sources = [open_batch(Infer.model_validate(infer)) for _ in range(2)]

    orders = [[source.numbers[n] for n in source.order()] for source in sources]
    assert orders == [[3, 2, 4, 0]] * 2
    assert [row["number"] for row in sources[0].rows([2, 0])] == [3, 0]


def test_a_conversation_that_begins_with_equal_turns_begins_alike():
    system = {"role": "system", "content": "be brief"}
    rows = [
        {"messages": [system, {"role": "user", "content": text}]} for text in ("one", "two", "")
    ]

    assert [prompt_text(row) for row in rows] == [
        "system\nbe brief\nuser\none",
        "system\nbe brief\nuser\ntwo",
        "system\nbe brief\nuser\n",
    ]
