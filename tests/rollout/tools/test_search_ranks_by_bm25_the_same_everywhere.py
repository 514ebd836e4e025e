"""BM25 as its formula says, by hand and against the plain sum; ties stand by place."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_calls import answer_of, tool_call

from rollout.errors import DataError
from rollout.tools.bm25 import K1, B, Bm25, words
from rollout.tools.search import SearchDocument, SearchSource, read_documents
from rollout.tools.toolbox import Toolbox

DOCUMENTS = ["red apple", "green apple apple pear", "blue sky"]
vocabulary = st.lists(st.sampled_from(["apple", "pear", "sky", "red", "green", "blue"]), max_size=8)


def plain_score(documents: list[str], query: str, place: int) -> float:
    counts = [words(one) for one in documents]
    mean = sum(map(len, counts)) / len(counts)
    total = 0.0
    for word in words(query):
        having = sum(word in one for one in counts)
        idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
        often = counts[place].count(word)
        total += idf * often / (often + K1 * (1 - B + B * len(counts[place]) / (mean or 1)))
    return total


def test_by_hand():
    apple = math.log(1 + 1.5 / 2.5)
    assert Bm25(DOCUMENTS).scores("apple") == pytest.approx(
        [
            apple / (1 + 1.5 * (0.25 + 0.75 * 2 / (8 / 3))),
            apple * 2 / (2 + 1.5 * (0.25 + 0.75 * 4 / (8 / 3))),
            0,
        ]
    )


@given(st.lists(vocabulary.map(" ".join), min_size=1, max_size=6), vocabulary.map(" ".join))
def test_against_the_plain_sum(documents, query):
    scores = Bm25(documents).scores(query)
    assert scores == pytest.approx(
        [plain_score(documents, query, n) for n in range(len(documents))]
    )
    best = Bm25(documents).best(query, 3)
    assert best == sorted(best, key=lambda place: (-scores[place], place))


def test_ties_stand_by_place():
    assert Bm25(["same words"] * 6).best("words", 3) == [0, 1, 2]


def test_stop_words_and_single_letters_find_nothing():
    assert Bm25(DOCUMENTS).best("the a is x", 5) == []


async def test_the_policy_searches_and_reads_the_rows_own_documents():
    row = {
        "documents": [
            {"title": "Fruit", "text": "red apple"},
            {"title": "Air", "paragraph_text": "blue sky"},
        ]
    }
    toolbox = Toolbox([SearchSource()], row)
    assert await answer_of(
        toolbox,
        tool_call("search", 0, query="apple"),
        tool_call("search", 1, query="zebra"),
        tool_call("read", 2, number=2),
        tool_call("read", 3, number=3),
        tool_call("search", 4, query="apple", k=9),
    ) == [
        "[1] Fruit\nred apple",
        "nothing was found",
        "[2] Air\nblue sky",
        "error: number: there are documents 1 to 2",
        "error: k: expected 1 to 5, got 9",
    ]


@pytest.mark.parametrize("given_", [None, "text", [], [3], [{"title": "a"}], [{"text": 1}], {}])
def test_what_is_no_list_of_documents_is_named(given_):
    with pytest.raises(DataError, match=r"the field.*(expected|document)"):
        read_documents(given_, "the field")


def test_a_row_without_documents_is_named():
    with pytest.raises(DataError, match=r"no field 'documents'.*'prompt'"):
        SearchSource().open({"prompt": "x"})


def test_a_shared_corpus_needs_no_field():
    source = SearchSource(documents=[SearchDocument(number=1, title="", text="apple")])
    assert [tool.spec.name for tool in source.open({})] == ["search", "read"]
