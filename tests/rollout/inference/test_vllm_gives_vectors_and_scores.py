"""vLLM behind the gateway gives the vectors and scores of a plain forward, to its number format; what it is not for is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import openai
import pytest
import torch
from serving_kit import serving

from rollout.models.resolve import resolve_model

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))

from pooled_models import copy_model, write_modules, write_reward_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("vllm"),
]

URI = "rollout://tiny-qwen2?hidden=64&layers=2&heads=2&context=128"
TEXTS = ["3+4=", "12", "a longer text than the others"]
NUMBER_FORMAT = 2e-2
"""bfloat16 has 8 bits: of a vector of length 1, and of a score of a random head."""


def test_vectors_and_scores_are_those_of_a_plain_forward(tmp_path):
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    from rollout.rendering import build_renderer
    from rollout.types import Message

    causal = resolve_model(URI, cache_dir=tmp_path / "cache").path
    vec = write_modules(copy_model(causal, tmp_path / "vec"), "mean")
    judge = write_reward_model(causal, tmp_path / "judge")
    words = (f"vec={vec}", f"judge={judge}", "--engine", "vllm", "--max-num-seqs", "4")
    with serving(tmp_path, *words) as served:
        client = openai.OpenAI(base_url=served.url, api_key=served.key, max_retries=0)
        found = client.embeddings.create(model="vec", input=TEXTS)
        model, tokenizer = AutoModel.from_pretrained(vec), AutoTokenizer.from_pretrained(vec)
        for text, one in zip(TEXTS, found.data, strict=True):
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            with torch.no_grad():
                state = model(input_ids=ids).last_hidden_state[0].mean(dim=0)
            theirs = state / state.norm()
            torch.testing.assert_close(
                torch.tensor(one.embedding), theirs, atol=NUMBER_FORMAT, rtol=0
            )
        base = served.url.removesuffix("/v1")
        headers = {"Authorization": f"Bearer {served.key}"}

        def post(path: str, **body: object) -> httpx.Response:
            return httpx.post(base + path, headers=headers, json=body, timeout=120)

        scores = post("/v1/score", model="judge", queries="3+4=", documents=TEXTS).json()["data"]
        head = AutoModelForSequenceClassification.from_pretrained(judge)
        renderer = build_renderer(judge)
        for text, one in zip(TEXTS, scores, strict=True):
            said = (Message(role="user", content="3+4="), Message(role="assistant", content=text))
            with torch.no_grad():
                theirs = head(input_ids=torch.tensor([renderer.render_training(said)[0]])).logits
            assert one["score"] == pytest.approx(theirs.item(), abs=NUMBER_FORMAT)
        ranked = post("/v1/rerank", model="judge", query="3+4=", documents=TEXTS, top_n=2).json()
        assert len(ranked["results"]) == 2
        assert post("/v1/embeddings", model="judge", input="a").status_code == 400
        too_long = post("/v1/embeddings", model="vec", input="1" * 900)
        assert too_long.status_code == 400
