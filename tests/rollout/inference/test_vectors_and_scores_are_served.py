"""``rollout infer serve`` of a model of vectors and of a reward model: OpenAI's client, vLLM's shapes, batches, refusals."""

from __future__ import annotations

import base64
import json
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from serving_kit import serving

from rollout.models.resolve import resolve_model

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))

from pooled_models import copy_model, write_modules, write_reward_model

pytestmark = pytest.mark.process

WAIT_SECONDS = 120
URI = "rollout://tiny-qwen2?hidden=32&layers=2&heads=2&context=64"


@pytest.fixture(scope="module")
def models():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        causal = resolve_model(URI, cache_dir=root / "cache").path
        yield {
            "vec": write_modules(copy_model(causal, root / "vec", is_matryoshka=True)),
            "judge": write_reward_model(causal, root / "judge"),
        }


@pytest.fixture(scope="module")
def served(models):
    words = (f"{name}={folder}" for name, folder in models.items())
    with (
        tempfile.TemporaryDirectory() as home,
        serving(Path(home), *words, "--files", "kept", "--log-requests") as found,
    ):
        yield found


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=served.url, api_key=served.key, max_retries=0)


def post(served, path: str, body: object, **options: object) -> httpx.Response:
    base = served.url.removesuffix("/v1")
    how = {"content": body} if isinstance(body, bytes) else {"json": body}
    headers = {"Authorization": f"Bearer {served.key}"}
    return httpx.post(base + path, headers=headers, timeout=WAIT_SECONDS, **how, **options)


def embed(client, given, **fields) -> list[list[float]]:
    return [
        one.embedding for one in client.embeddings.create(model="vec", input=given, **fields).data
    ]


def test_openais_client_gets_the_same_vectors_in_every_form(served, client):
    texts = ["3+4=", "12", "a longer text"]
    answer = client.embeddings.create(model="vec", input=texts)
    vectors = [one.embedding for one in answer.data]
    assert [one.index for one in answer.data] == [0, 1, 2]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    assert answer.model == "vec"
    assert all(sum(x * x for x in one) == pytest.approx(1.0, abs=1e-5) for one in vectors)
    assert embed(client, texts, encoding_format="float") == [
        pytest.approx(one, abs=1e-6) for one in vectors
    ]
    raw = post(
        served, "/v1/embeddings", {"model": "vec", "input": texts[0], "encoding_format": "base64"}
    )
    packed = base64.b64decode(raw.json()["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(packed) // 4}f", packed)) == pytest.approx(
        vectors[0], abs=1e-6
    )


def test_tokens_are_embedded_as_their_text_is(served, client):
    ids = post(served, "/tokenize", {"model": "vec", "prompt": "3+4="}).json()["tokens"]
    assert embed(client, ids)[0] == pytest.approx(embed(client, "3+4=")[0], abs=1e-6)
    assert embed(client, [ids, ids[:1]])[0] == pytest.approx(embed(client, ids)[0], abs=1e-5)


def test_a_vector_is_cut_where_the_model_allows_it(client):
    [whole], [cut] = embed(client, "3+4="), embed(client, "3+4=", dimensions=8)
    length = sum(x * x for x in whole[:8]) ** 0.5
    assert cut == pytest.approx([x / length for x in whole[:8]], abs=1e-5)
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="vec", input="a", dimensions=33)
    assert refused.value.param == "dimensions"


def test_lists_of_texts_and_of_tokens_are_answered_in_order_in_base64(served):
    """The shapes of ``langchain-openai``, with and without ``check_embedding_ctx_length``."""
    for given in (["first", "second"], [[20, 21, 22], [23]]):
        body = {"input": given, "model": "vec", "encoding_format": "base64"}
        answer = post(served, "/v1/embeddings", body).json()
        assert [one["index"] for one in answer["data"]] == [0, 1]
        assert all(isinstance(one["embedding"], str) for one in answer["data"])


def test_a_reward_model_scores_answers_to_a_question(served, models):
    import torch
    from transformers import AutoModelForSequenceClassification

    from rollout.rendering import build_renderer
    from rollout.types import Message

    answers = ["7", "8", "a long answer"]
    body = {"model": "judge", "queries": "3+4=", "documents": answers}
    found = post(served, "/v1/score", body).json()
    model = AutoModelForSequenceClassification.from_pretrained(models["judge"])
    renderer = build_renderer(models["judge"])
    for one, text in zip(found["data"], answers, strict=True):
        said = (Message(role="user", content="3+4="), Message(role="assistant", content=text))
        ids = renderer.render_training(said)[0]
        with torch.no_grad():
            theirs = model(input_ids=torch.tensor([ids])).logits[0, 0].item()
        assert one["score"] == pytest.approx(theirs, abs=1e-5)
    assert found["usage"]["prompt_tokens"] > 0
    older = {"model": "judge", "text_1": ["3+4="] * 3, "text_2": answers}
    assert post(served, "/score", older).json()["data"] == found["data"]
    turns = [{"role": "user", "content": "3+4="}, {"role": "assistant", "content": "7"}]
    shown = post(served, "/classify", {"model": "judge", "messages": turns}).json()
    assert shown["data"][0]["probs"] == [pytest.approx(found["data"][0]["score"], abs=1e-5)]


@pytest.mark.parametrize("name", ["judge", "vec"])
def test_documents_are_ranked_best_first(served, name):
    documents = ["7", "8", "something else", "7"]
    pairs = {"model": name, "queries": "3+4=", "documents": documents}
    scores = [one["score"] for one in post(served, "/v1/score", pairs).json()["data"]]
    body = {"model": name, "query": "3+4=", "documents": documents, "top_n": 3}
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        results = post(served, path, body).json()["results"]
        told = [one["relevance_score"] for one in results]
        assert told == sorted(told, reverse=True) == sorted(scores, reverse=True)[:3]
        assert all(scores[one["index"]] == one["relevance_score"] for one in results)
        assert all(documents[one["index"]] == one["document"]["text"] for one in results)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"model": "judge", "input": "a"}, "model"),
        (
            "/v1/chat/completions",
            {"model": "vec", "messages": [{"role": "user", "content": "a"}]},
            "model",
        ),
        ("/v1/completions", {"model": "judge", "prompt": "a"}, "model"),
        ("/classify", {"model": "vec", "input": "a"}, "model"),
        ("/v1/embeddings", {"model": "vec", "input": "1" * 500}, "input"),
        ("/v1/embeddings", {"model": "vec", "input": [10**9]}, "input"),
        ("/v1/embeddings", {"model": "vec", "input": [-1]}, "input"),
        ("/v1/embeddings", {"model": "vec", "input": ["a", ""]}, "input"),
        ("/v1/embeddings", {"model": "vec", "input": ["a"] * 2049}, "input"),
        ("/v1/score", {"model": "judge", "queries": ["a", "b"], "documents": ["c"]}, "queries"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_cannot_be_answered_is_refused_by_name(served, path, body, param):
    answer = post(served, path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_client_that_leaves_in_the_middle_costs_nobody_anything(served, client):
    url = urlsplit(served.url)
    body = json.dumps({"model": "vec", "input": ["1+1=2"] * 2000}).encode()
    head = (
        f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    for sent in (head, head + body[:100], head + body):
        with socket.create_connection((url.hostname, url.port)) as left:
            left.sendall(sent)
            left.shutdown(socket.SHUT_WR)
    assert len(embed(client, "3+4=")) == 1


def test_a_batch_of_vectors_and_one_of_scores_are_answered_once(client):
    embeddings = [
        {"model": "vec", "input": f"{i}+{i}=", **({"dimensions": 99} if i == 3 else {})}
        for i in range(6)
    ]
    output, errors = run_batch(client, "/v1/embeddings", embeddings)
    assert set(output) == {"0", "1", "2", "4", "5"}
    assert set(errors) == {"3"}
    for key, one in output.items():
        vector = one["response"]["body"]["data"][0]["embedding"]
        assert vector == pytest.approx(embed(client, embeddings[int(key)]["input"])[0], abs=1e-5)
    scores = [{"model": "judge", "queries": "1+1=", "documents": [str(i)]} for i in range(4)]
    output, errors = run_batch(client, "/v1/score", scores)
    assert (set(output), errors) == ({"0", "1", "2", "3"}, {})


def run_batch(client, url, bodies):
    lines = [
        {"custom_id": str(i), "method": "POST", "url": url, "body": one}
        for i, one in enumerate(bodies)
    ]
    data = "".join(json.dumps(one) + "\n" for one in lines).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")
    deadline = time.monotonic() + WAIT_SECONDS
    while (batch := client.batches.retrieve(batch.id)).status != "completed":
        assert batch.status != "failed", batch.errors
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    return tuple(
        {}
        if name is None
        else {
            one["custom_id"]: one
            for one in map(json.loads, client.files.content(name).text.splitlines())
        }
        for name in (batch.output_file_id, batch.error_file_id)
    )


def test_a_batch_of_what_the_model_does_not_give_fails_at_once(client):
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings"}
    line["body"] = {"model": "judge", "input": "a"}
    file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
    )
    deadline = time.monotonic() + WAIT_SECONDS
    while (batch := client.batches.retrieve(batch.id)).status != "failed":
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    assert batch.errors.data[0].code == "unsupported_route"
