"""Cut distributions and scores beside completions, through the unmodified client, against transformers: to 1e-6."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import tinker
import torch
from serve_kit import ServedTraining
from tinker import types
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.process

TOKENS = [5, 6, 7, 8, 9, 10, 11]
PROMPT = types.ModelInput.from_ints(TOKENS)


@pytest.fixture(scope="module")
def served(no_telemetry):
    with tempfile.TemporaryDirectory() as home:
        found = ServedTraining(home=Path(home))
        found.start()
        client = tinker.ServiceClient(base_url=found.url, api_key=found.key)
        model = client.create_lora_training_client("tiny", rank=4, train_unembed=False).result(60)
        folder = Path(model.get_info().model_data.tokenizer_id)
        network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        yield client.create_sampling_client(base_model="tiny").result(60), network
        client.close("success").result(60)
        found.kill()


def distributions(network, tokens, temperature=1.0):
    with torch.no_grad():
        return (network(torch.tensor([tokens])).logits[0] / temperature).log_softmax(-1)


def cut(logprobs_V, top_k, top_p):
    """The definition, token by token: the likeliest, at most k, until they have p together."""
    order = sorted(range(len(logprobs_V)), key=lambda i: (-float(logprobs_V[i]), i))[:top_k]
    probabilities = np.exp(np.array([float(logprobs_V[i]) for i in order]))
    probabilities /= probabilities.sum()
    kept = [
        i for i, before in enumerate(np.cumsum(probabilities) - probabilities) if before < top_p
    ]
    total = probabilities[kept].sum()
    return {order[i]: float(np.log(probabilities[i] / total)) for i in kept}


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (-1, 0.5), (20, 0.3), (1, 1.0), (-1, 1e-9)])
def test_tokens_come_from_what_is_left_with_its_logprobs(served, top_k, top_p):
    sampler, network = served
    params = types.SamplingParams(
        max_tokens=3, temperature=0.7, top_k=top_k, top_p=top_p, seed=4, stop=[]
    )
    drawn = sampler.sample(PROMPT, 24, params).result(60).sequences
    for one in drawn:
        logprobs = distributions(network, [*TOKENS, *one.tokens], 0.7)
        for place, (token, logprob) in enumerate(zip(one.tokens, one.logprobs, strict=True)):
            left = cut(logprobs[len(TOKENS) - 1 + place], top_k if top_k > 0 else None, top_p)
            assert logprob == pytest.approx(left[token], abs=2e-6)
    again = sampler.sample(PROMPT, 24, params).result(60).sequences
    assert [one.tokens for one in again] == [one.tokens for one in drawn]


def test_the_likeliest_tokens_stand_beside_those_of_prompt_and_completion(served):
    sampler, network = served
    params = types.SamplingParams(max_tokens=4, temperature=0.5, seed=1, stop=[])
    target = types.TensorData(
        data=[6, -1, 7, 3, 8, 3, 9, 3, 10, 3, 11, 3], dtype="int64", shape=[6, 2]
    )
    said = sampler.sample(
        PROMPT,
        2,
        params,
        include_prompt_logprobs=True,
        topk_prompt_logprobs=3,
        topk_sample_logprobs=2,
        target_prompt_logprobs=target,
    ).result(60)
    logprobs = distributions(network, TOKENS)
    first, *rest = said.topk_prompt_logprobs
    assert first is None
    for place, pairs in enumerate(rest):
        values, ids = torch.topk(logprobs[place], 3)
        assert [token for token, _ in pairs] == ids.tolist()
        assert [value for _, value in pairs] == pytest.approx(values.tolist(), abs=1e-6)
    picked = np.array(said.target_prompt_logprobs.data).reshape(6, 2)
    assert picked[0, 1] == 0.0
    assert picked[:, 0] == pytest.approx(said.prompt_logprobs[1:], abs=1e-6)
    assert picked[1:, 1] == pytest.approx(logprobs[1:6, 3].tolist(), abs=1e-6)
    for one in said.sequences:
        wanted = distributions(network, [*TOKENS, *one.tokens], 0.5)[len(TOKENS) - 1 :]
        for place, pairs in enumerate(one.topk_logprobs):
            values, ids = torch.topk(wanted[place], 2)
            assert [token for token, _ in pairs] == ids.tolist()
            assert [value for _, value in pairs] == pytest.approx(values.tolist(), abs=2e-6)


def test_only_the_last_tokens_are_scored_where_that_is_asked(served):
    sampler, _ = served
    params = types.SamplingParams(max_tokens=1)
    more = {"include_prompt_logprobs": True, "topk_prompt_logprobs": 2}
    whole = sampler.sample(PROMPT, 1, params, **more).result(60)
    some = sampler.sample(PROMPT, 1, params, **more, prompt_logprobs_last_n=2).result(60)
    assert some.prompt_logprobs == [None] * 5 + whole.prompt_logprobs[5:]
    assert some.topk_prompt_logprobs == [None] * 5 + whole.topk_prompt_logprobs[5:]
