"""Every sampled token's logprob equals what a plain forward of the transformers model gives it."""

from __future__ import annotations

import json

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from rollout.engines.embedded.config import read_config
from rollout.engines.embedded.engine import EmbeddedEngine


def plain_logprobs(model, prompt, completion, temperature):
    ids = torch.tensor([prompt + completion])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].double() / temperature
    chosen = torch.tensor(completion)[:, None]
    return torch.log_softmax(logits, -1).gather(1, chosen)[:, 0]


def worst_difference(model, requests, results, temperature):
    return max(
        float(
            (
                plain_logprobs(model, r.prompt_ids, c.token_ids, temperature)
                - torch.tensor(c.logprobs)
            )
            .abs()
            .max()
        )
        for r, group in zip(requests, results, strict=True)
        for c in group
    )


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3", "mistral", "gemma"])
@pytest.mark.parametrize("options", [{}, {"exact": False, "batch_groups": 3}, {"batch_groups": 4}])
async def test_sampled_logprobs_equal_a_plain_forward(
    kind, options, tiny_model, start_engine, request_of
):
    model = tiny_model(kind)
    engine = await start_engine(model, **options)
    requests = [request_of(n, seed=n, temperature=0.7) for n in (5, 9, 9, 1)]

    results = await engine.generate(requests)

    assert worst_difference(model, requests, results, 0.7) <= 5e-6


async def test_greedy_takes_the_most_likely_token_and_reports_the_models_logprob(
    tiny_model, start_engine, request_of
):
    model = tiny_model("qwen2")
    engine = await start_engine(model)
    request = request_of(6, size=2, temperature=0.0)

    [group] = await engine.generate([request])

    assert group[0].token_ids == group[1].token_ids
    ids = torch.tensor([request.prompt_ids + group[0].token_ids])
    with torch.no_grad():
        best = model(ids).logits[0, len(request.prompt_ids) - 1 : -1].argmax(-1)
    assert tuple(best.tolist()) == group[0].token_ids
    assert worst_difference(model, [request], [group], 1.0) <= 5e-6


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.parametrize("rope", [LLAMA3, LINEAR, YARN])
async def test_rope_scaling_and_attention_bias_are_those_of_the_configuration(
    rope, tiny_model, start_engine, request_of
):
    model = tiny_model("llama", rope_parameters=rope, attention_bias=True)
    engine = await start_engine(model)
    requests = [request_of(150, size=2, max_new_tokens=4)]

    results = await engine.generate(requests)

    assert worst_difference(model, requests, results, 1.0) <= 5e-6


@pytest.mark.parametrize("rope", [LLAMA3, LINEAR, {"rope_type": "default", "rope_theta": 1e6}])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_rotary_frequencies_are_those_of_transformers_to_the_last_bit(
    rope, head_dim, tiny_config, tmp_path
):
    config = tiny_config("llama", rope_parameters=rope, head_dim=head_dim)
    config.save_pretrained(tmp_path)

    found = read_config(tmp_path)

    assert found is not None
    assert torch.equal(found.inverse_frequencies, LlamaRotaryEmbedding(config).inv_freq)


async def test_a_configuration_in_the_older_form_means_the_same(
    tiny_model, start_engine, request_of, tmp_path
):
    engine = await start_engine(tiny_model("llama", rope_parameters=LLAMA3))
    expected = await engine.generate([request_of(80)])
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    path.write_text(json.dumps(config))

    older = EmbeddedEngine(tmp_path / "model")
    await older.load(engine.version, tmp_path / "model" / "model.safetensors")

    assert await older.generate([request_of(80)]) == expected


async def test_bfloat16_stays_near_the_bfloat16_model(tiny_model, start_engine, request_of):
    model = tiny_model("qwen2").to(torch.bfloat16)
    engine = await start_engine(model, dtype="BFloat16")
    requests = [request_of(9)]

    results = await engine.generate(requests)

    assert worst_difference(model, requests, results, 1.0) <= 0.3


async def test_frequencies_of_sampled_tokens_are_their_probabilities(
    tiny_model, start_engine, request_of
):
    model = tiny_model("qwen2")
    engine = await start_engine(model, exact=False)
    request = request_of(5, size=4000, max_new_tokens=1)

    [group] = await engine.generate([request])

    counts = torch.bincount(torch.tensor([c.token_ids[0] for c in group]), minlength=61).double()
    with torch.no_grad():
        expected = (
            model(torch.tensor([request.prompt_ids])).logits[0, -1].double().softmax(-1) * 4000
        )
    large = expected > 5
    chi_square = ((counts - expected)[large] ** 2 / expected[large]).sum()
    assert float(chi_square) < 2 * int(large.sum())
