"""Bodies for vectors and scores: an ask or a refusal by name, whatever they hold; and only models that can are asked."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.inference.gateway.rules.asks import read_ask
from rollout.inference.gateway.rules.fields import ROUTES_OF_MODELS
from rollout.inference.gateway.rules.pooling import INPUTS_MAX, POOLED, require_route
from rollout.inference.gateway.rules.refusals import ApiRefusal

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)
FIELDS = sorted(set().union(*(ROUTES_OF_MODELS[path] for path in POOLED)) - {"model"})
TEXTS = st.text(min_size=1, max_size=6) | st.lists(st.text(min_size=1, max_size=6), min_size=1)


def ask(path: str, **fields: object):
    return read_ask(path, json.dumps({"model": "m", **fields}).encode())


def refusal(path: str, **fields: object) -> ApiRefusal:
    with pytest.raises(ApiRefusal) as refused:
        ask(path, **fields)
    return refused.value


@given(
    st.sampled_from(sorted(POOLED)),
    st.dictionaries(st.sampled_from(FIELDS), JSON),
)
def test_any_object_is_an_ask_or_a_refusal_with_a_name(path, fields):
    try:
        read = read_ask(path, json.dumps({**fields, "model": "m"}).encode())
    except ApiRefusal as refused:
        assert refused.status == 400
        return
    assert not read.stream
    assert read.tokens == read.prompt_tokens


@given(st.sampled_from(["/v1/score", "/score"]), TEXTS, TEXTS)
def test_pairs_are_one_and_any_or_as_many_of_each(path, queries, documents):
    num = [len(one) if isinstance(one, list) else 1 for one in (queries, documents)]
    if num[0] in {1, num[1]}:
        assert ask(path, queries=queries, documents=documents).lead
        return
    assert refusal(path, queries=queries, documents=documents).param == "queries"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/embeddings", {"input": ["a"] * (INPUTS_MAX + 1)}, "input"),
        ("/v1/embeddings", {"input": [[1]] * (INPUTS_MAX + 1)}, "input"),
        ("/v1/embeddings", {"input": [1, "a"]}, "input"),
        ("/v1/embeddings", {"input": [[]]}, "input"),
        ("/v1/embeddings", {"input": [True]}, "input"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "encoding_format": ["float"]}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "dimensions": 1.5}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "stream": True}, "stream"),
        ("/v1/score", {"queries": "a"}, "documents"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "queries": "c"}, "queries"),
        ("/v1/rerank", {"query": ["a"], "documents": ["b"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": [{"text": "b"}]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/classify", {"input": "a", "messages": []}, "messages"),
        ("/classify", {"input": "a", "use_activation": "yes"}, "use_activation"),
        ("/classify", {}, "input"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(path, fields, param):
    assert refusal(path, **fields).param == param


def test_as_many_tokens_as_one_text_has_are_no_list_of_texts():
    assert ask("/v1/embeddings", input=[1] * (INPUTS_MAX + 1)).prompt_tokens > INPUTS_MAX / 4


@pytest.mark.parametrize("task", ["generate", "embed", "score"])
def test_each_path_but_the_tokenizers_is_of_models_of_a_kind(task):
    def answered(path: str) -> bool:
        try:
            require_route(task, "m", path)
        except ApiRefusal as refused:
            assert (refused.status, refused.code) == (400, "unsupported_route")
            return False
        return True

    paths = {path for path in ROUTES_OF_MODELS if answered(path)}
    assert "/tokenize" in paths
    assert ("/v1/chat/completions" in paths) == (task == "generate")
    assert ("/v1/embeddings" in paths) == (task == "embed")
    assert ("/classify" in paths) == (task == "score")
    assert ("/v1/rerank" in paths) == (task != "generate")
