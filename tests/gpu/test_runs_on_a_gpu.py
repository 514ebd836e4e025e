"""An actor and a learner on one CUDA device: they agree with each other, and with themselves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import jobs
import pytest
import shaped_model
import torch
from one_process import OneProcess, plan_config

from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.learner.forward.packed_rows import GroupTokens, build_group_row, token_logprobs
from rollout.learner.model.policy import load_model
from rollout.types import GenerateRequest, SamplingParams, WeightVersion
from rollout.weights.digest import digest_tensors, load_weights

DEVICE = torch.device("cuda")
SIZES = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
KINDS = {
    "qwen2": lambda: shaped_model.qwen2_half_billion(**SIZES, num_attention_heads=4),
    "qwen3": lambda: shaped_model.qwen3_point_six_billion(
        **SIZES, num_attention_heads=4, num_key_value_heads=2, head_dim=64
    ),
}
MISMATCH_KL_MAX = 4e-4


@pytest.fixture(params=sorted(KINDS))
def model(request, tmp_path):
    return Path(shaped_model.write_model(tmp_path / "model", KINDS[request.param](), "cuda"))


def request_of(index, samples=4, new=24):
    prompt = tuple((17 * index + 3 * k) % 4000 + 3 for k in range(11 + 5 * index))
    return GenerateRequest(
        prompt_ids=prompt,
        sampling=SamplingParams(max_new_tokens=new, temperature=1.0),
        seeds=tuple(range(100 * index, 100 * index + samples)),
    )


def generated(folder, requests, *, groups, exact=True):
    async def run():
        engine = EmbeddedEngine(
            folder, dtype="BFloat16", exact=exact, batch_groups=groups, device=DEVICE
        )
        weights = folder / "model.safetensors"
        digest = digest_tensors(load_weights(weights))
        version = WeightVersion(lineage=0, step=0, digest=digest, object=digest)
        assert await engine.load(version, weights) == digest
        found = await engine.generate(requests)
        await engine.stop()
        return [[(one.token_ids, one.logprobs) for one in group] for group in found]

    return asyncio.run(run())


def test_the_engines_logprobs_are_the_learners(model):
    requests = [request_of(index) for index in range(4)]
    found = generated(model, requests, groups=4)
    learner = load_model(model).to(DEVICE, torch.bfloat16)
    groups = [
        GroupTokens(prompt_ids=one.prompt_ids, completion_ids=tuple(ids for ids, _ in group))
        for one, group in zip(requests, found, strict=True)
    ]

    with torch.no_grad():
        scored = token_logprobs(learner, build_group_row(groups).to(DEVICE)).logprobs_C.cpu()

    told = torch.tensor([p for group in found for _, logprobs in group for p in logprobs])
    ratio = scored - told
    assert float((ratio.exp() - 1 - ratio).mean()) <= MISMATCH_KL_MAX


@pytest.mark.parametrize("groups", [1, 4])
def test_a_group_is_the_same_whatever_is_asked_beside_it(model, groups, exact):
    requests = [request_of(index) for index in range(4)]

    together = generated(model, requests, groups=groups)

    assert generated(model, requests, groups=groups) == together
    for request, group in zip(requests, together, strict=True):
        assert generated(model, [request], groups=groups) == [group]


@pytest.mark.parametrize("mode", ["Exact", "Fast"])
@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_a_run_takes_its_steps_and_in_exact_takes_them_again(kind, mode, model, tmp_path):
    build = jobs.grpo_job if kind == "grpo" else jobs.sft_job
    job = build(tmp_path, *((16, 12) if kind == "grpo" else (24,)), model=f"file://{model}")
    job = replace(job, mode=mode, device="cuda")
    manifest = Path(job.write(tmp_path, "job")).with_suffix(".yaml")

    def steps(name):
        run = OneProcess(plan_config(manifest, tmp_path / name))
        return [(asyncio.run(run.step())["loss"], run.progress.chain) for _ in range(4)]

    first = steps("first")

    assert all(loss == loss for loss, _ in first)  # noqa: PLR0124 - a number
    if mode == "Exact":
        assert steps("second") == first
