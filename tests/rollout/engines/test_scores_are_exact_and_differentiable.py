"""The fused log-probability and the attention kernels against their definitions."""

from __future__ import annotations

import pytest
import torch

from rollout.learner.forward.kernels import (
    Inputs,
    attend,
    attend_backward,
    attend_plainly,
    attend_plainly_backward,
)
from rollout.learner.forward.layout import RowSegment, plan_layout
from rollout.learner.forward.logprobs import selected_logprobs


def definition(logits, source, targets, temperature):
    logp = torch.log_softmax(logits.float() / temperature, -1)[source]
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_and_their_gradients_follow_the_definition(dtype, temperature):
    torch.manual_seed(0)
    source, targets = torch.tensor([0, 0, 2, 3, 3, 3]), torch.tensor([1, 4, 0, 8, 8, 2])
    logits = torch.randn(4, 9).to(dtype).requires_grad_()
    twin = logits.detach().clone().requires_grad_()
    weights = torch.randn(2, 6)

    stats = selected_logprobs(logits, source, targets, temperature=temperature, entropy=True)
    (weights[0] * stats.logprobs_C + weights[1] * stats.entropy_C).sum().backward()
    logprobs, entropy = definition(twin, source, targets, temperature)
    (weights[0] * logprobs + weights[1] * entropy).sum().backward()

    loose = {"atol": 1e-6} if dtype == torch.float32 else {"atol": 3e-2, "rtol": 3e-2}
    assert torch.allclose(stats.logprobs_C, logprobs, **loose)
    assert torch.allclose(stats.entropy_C, entropy, **loose)
    assert torch.allclose(logits.grad.float(), twin.grad.float(), **loose)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_mean_over_the_vocabulary_follows_the_definition(temperature):
    torch.manual_seed(0)
    source, targets = torch.tensor([0, 0, 2, 3]), torch.tensor([1, 4, 0, 8])
    logits = torch.randn(4, 9).double().requires_grad_()
    twin = logits.detach().clone().requires_grad_()
    weights = torch.randn(3, 4)

    stats = selected_logprobs(
        logits, source, targets, temperature=temperature, entropy=True, spread=True
    )
    columns = stats.logprobs_C, stats.entropy_C, stats.mean_logprobs_C
    sum((w * c).sum() for w, c in zip(weights, columns, strict=True)).backward()
    logp = torch.log_softmax(twin / temperature, -1)[source]
    plain = logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1), logp.mean(-1)
    sum((w * c).sum() for w, c in zip(weights, plain, strict=True)).backward()

    assert torch.allclose(stats.mean_logprobs_C, plain[2])
    assert torch.allclose(logits.grad, twin.grad)


def test_entropy_is_absent_unless_asked_for():
    stats = selected_logprobs(
        torch.zeros(1, 4), torch.tensor([0]), torch.tensor([2]), temperature=1.0, entropy=False
    )

    assert stats.entropy_C is None
    assert stats.logprobs_C.item() == pytest.approx(-1.3862944)


@pytest.mark.parametrize("causal", [True, False])
def test_the_flash_kernel_and_the_written_out_formulas_agree(causal):
    torch.manual_seed(0)
    q, k, v, grad = (torch.randn(2, heads, 7, 8) for heads in (4, 2, 2, 4))
    bias = None if causal else torch.zeros(2, 1, 1, 7).index_fill(3, torch.tensor([6]), -torch.inf)
    x = Inputs(q=q, k=k, v=v, bias=bias, causal=causal, scale=0.3)

    out, lse = attend(x)
    plain_out, plain_lse = attend_plainly(x)

    assert torch.allclose(out, plain_out, atol=1e-6)
    assert torch.allclose(lse, plain_lse, atol=1e-6)
    mine = attend_backward(grad, x, out, lse)
    theirs = attend_plainly_backward(grad, x, plain_out, plain_lse)
    for one, other in zip(mine, theirs, strict=True):
        assert torch.allclose(one, other, atol=2e-6)


def test_every_token_is_in_one_stretch_and_every_follower_meets_its_prompt():
    lengths = [(60, None), (50, 0), (50, 0), (3, 0), (4, None), (2, 4), (1, 4)]
    segments, start = [], 0
    for length, prompt in lengths:
        segments.append(RowSegment(start=start, end=start + length, prompt=prompt))
        start += length

    layout = plan_layout(segments)

    covered = [i for run in layout.runs for i in range(run.start, run.end)]
    covered += [int(i) for bucket in layout.buckets for i in bucket.rows]
    assert sorted(covered) == list(range(start))
    assert [(run.count, run.length) for run in layout.runs] == [(1, 60), (2, 50)]
    [cross] = layout.crosses
    assert (cross.queries.start, cross.queries.end, cross.keys.length) == (60, 163, 60)
    [small] = layout.cross_buckets
    assert small.queries.rows.tolist() == [167, 168, 169]
    assert small.keys.rows.tolist() == [163, 164, 165, 166]
