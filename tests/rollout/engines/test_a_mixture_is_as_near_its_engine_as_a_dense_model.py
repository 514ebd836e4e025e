"""In half precision rounding chooses other experts; by the engine's own the learner is as near as in a dense model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rollout.coordinator.rules.drift import METRIC, STEPS, DriftBounds, judge_drift
from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.learner.forward.packed_rows import (
    GroupTokens,
    PackedRow,
    build_group_row,
    token_logprobs,
)
from rollout.learner.model.policy import load_model
from rollout.models.resolve import resolve_model
from rollout.types import GenerateRequest, SamplingParams, WeightVersion
from rollout.weights.digest import digest_tensors, save_weights
from rollout_api.v1alpha1.operations import Limits

SIZES = "hidden=64&layers=4&context=128"
DENSE = f"rollout://tiny-qwen2?{SIZES}&intermediate=128"
"""As wide as the two experts that a token meets."""
MIXTURE = f"rollout://tiny-qwen3-moe?{SIZES}&intermediate=64&experts=8&top_k=2"


def mismatch_kl(logprobs_C: torch.Tensor, actor_logprobs_C: torch.Tensor) -> float:
    """Mean of ratio - 1 - its logarithm: never negative."""
    gap = (logprobs_C - actor_logprobs_C).double()
    return float((gap.exp() - 1 - gap).mean())


def of_next_experts(row: PackedRow) -> PackedRow:
    """The row with routes that fit the model and are wrong: each expert's neighbour."""
    return row if row.routes is None else replace(row, routes=(row.routes + 1) % 8)


async def measure(uri: str, routes_from: int | None, tmp_path: Path) -> tuple[float, float, float]:
    """The mismatch of 480 tokens in bfloat16: by the engine's experts, by the learner's own, by wrong ones."""
    folder = Path(resolve_model(uri).path)
    model = load_model(folder).eval()
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=noise) * 0.15)
    model = model.to(torch.bfloat16)
    weights = dict(model.named_parameters())
    save_weights(weights, tmp_path / "model.safetensors")
    digest = digest_tensors(weights)
    version = WeightVersion(lineage=0, step=1, digest=digest, object=digest)
    engine = EmbeddedEngine(folder, dtype="BFloat16")
    await engine.load(version, tmp_path / "model.safetensors")
    asked = GenerateRequest(
        prompt_ids=tuple(range(20, 40)),
        seeds=tuple(range(8)),
        sampling=SamplingParams(max_new_tokens=60),
        routes_from=routes_from,
    )
    (samples,) = await engine.generate([asked])
    await engine.stop()
    group = GroupTokens(
        prompt_ids=asked.prompt_ids,
        completion_ids=tuple(one.token_ids for one in samples),
        routes=() if routes_from is None else tuple(one.routes for one in samples),
    )
    told = torch.tensor([value for one in samples for value in one.logprobs])
    row = build_group_row([group])
    with torch.no_grad():
        found = [
            token_logprobs(model, one).logprobs_C.float()
            for one in (row, row.unrouted(), of_next_experts(row))
        ]
    told_by, own, wrong = (mismatch_kl(one, told) for one in found)
    return told_by, own, wrong


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return asyncio.run(measure(MIXTURE, 0, tmp_path_factory.mktemp("mixture")))


def test_replayed_experts_leave_no_more_mismatch_than_a_dense_twin_has(mixture, tmp_path):
    dense, *_ = asyncio.run(measure(DENSE, None, tmp_path))
    replayed, chosen_anew, _ = mixture

    assert 0 < replayed <= dense
    assert chosen_anew > 3 * replayed


def test_routes_that_fit_and_are_wrong_are_said_by_the_bound_on_the_mismatch(mixture):
    right, _, wrong = mixture
    bounds = DriftBounds(warn=Limits().mismatch_kl_warn)

    told = [judge_drift([{METRIC: one}] * STEPS, bounds) for one in (right, wrong)]

    assert [one.level for one in told] == ["none", "warn"]
    assert "limits.mismatchKl" in told[1].message
