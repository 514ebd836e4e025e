"""The calls that a packed row makes on a CUDA device, with the CPU's kernel in the place of the device's.

``tests/gpu`` asks the same of the device's own kernel.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from rollout.learner.forward import attention, flash_rows
from rollout.learner.forward.kernels import Inputs, attend, attend_backward
from rollout.learner.forward.packed_rows import (
    GroupTokens,
    SequenceTokens,
    build_group_row,
    build_sequence_row,
    prepare_model,
    token_logprobs,
)

SHAPES = [
    [(5, (3, 1, 7)), (1, (1, 1)), (9, (4,))],
    [(70, (80, 80, 80)), (60, (2, 90))],
    [(130, (64, 65)), (3, (1, 1)), (3, (5, 5))],
]


def stretches_of(call: flash_rows._Call):
    bounds = zip(call.queries.bounds.tolist(), call.keys.bounds.tolist(), strict=True)
    for (q_start, k_start), (q_end, k_end) in pairwise(bounds):
        q, k, v = (
            x[start:end].transpose(0, 1)[None]
            for x, start, end in (
                (call.q, q_start, q_end),
                (call.k, k_start, k_end),
                (call.v, k_start, k_end),
            )
        )
        inputs = Inputs(q=q, k=k, v=v, bias=None, causal=call.causal, scale=call.scale)
        assert q_end - q_start <= call.queries.longest
        assert k_end - k_start <= call.keys.longest
        yield slice(q_start, q_end), inputs


def one_by_one(call: flash_rows._Call):
    found = [attend(inputs) for _, inputs in stretches_of(call)]
    out = torch.cat([out[0].transpose(0, 1) for out, _ in found])
    return out, torch.cat([lse[0] for _, lse in found], dim=1)


def one_by_one_backward(grad, call: flash_rows._Call, out, lse):
    found = []
    for q, inputs in stretches_of(call):
        grad_out, its_out = (x[q].transpose(0, 1)[None] for x in (grad, out))
        found.append(attend_backward(grad_out, inputs, its_out, lse[None, :, q]))
    return tuple(
        torch.cat([x[0].transpose(0, 1) for x in parts]) for parts in zip(*found, strict=True)
    )


@pytest.fixture
def as_on_cuda(monkeypatch):
    def switch():
        monkeypatch.setattr(attention, "fits", lambda query: True)
        monkeypatch.setattr(flash_rows, "_kernel", one_by_one)
        monkeypatch.setattr(flash_rows, "_kernel_backward", one_by_one_backward)

    return switch


def scores_and_gradients(model, row):
    model.zero_grad()
    stats = token_logprobs(model, row, entropy=True)
    weights = torch.linspace(-1, 1, len(stats.logprobs_C))
    (stats.logprobs_C * weights).sum().backward()
    return stats.logprobs_C.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])


def assert_same(model, row, switch):
    right, right_gradients = scores_and_gradients(model, row)
    switch()
    found, gradients = scores_and_gradients(model, row)
    assert (found - right).abs().max() <= 5e-6
    assert (gradients - right_gradients).norm() <= 2e-6 * right_gradients.norm()


@pytest.mark.parametrize("shapes", SHAPES)
def test_groups_give_the_values_and_gradients_of_the_cpus_calls(
    shapes, tiny_model, ids, as_on_cuda
):
    model = tiny_model("qwen2").train()
    prepare_model(model)
    groups = [
        GroupTokens(
            prompt_ids=ids(i, prompt),
            completion_ids=tuple(ids(100 * i + j, n) for j, n in enumerate(completions)),
        )
        for i, (prompt, completions) in enumerate(shapes)
    ]
    assert_same(model, build_group_row(groups), as_on_cuda)


def test_sequences_of_their_own_make_one_call(tiny_model, ids, as_on_cuda):
    model = tiny_model("llama").train()
    prepare_model(model)
    sequences = [
        SequenceTokens(token_ids=ids(i, n), scored=(0,) + (1,) * (n - 1))
        for i, n in enumerate((12, 5, 70, 70, 2))
    ]
    row = build_sequence_row(sequences)

    assert flash_rows.plan_flash(row.layout.segments, torch.device("cpu")).shared is None
    assert_same(model, row, as_on_cuda)


def test_a_prompt_is_read_once_however_many_continue_it(ids):
    row = build_group_row([GroupTokens(prompt_ids=ids(0, 7), completion_ids=(ids(1, 5),) * 6)])
    plan = flash_rows.plan_flash(row.layout.segments, torch.device("cpu"))

    assert plan.shared is not None
    assert plan.shared.keys.stretches.bounds.tolist() == [0, 7]
    assert plan.shared.queries.stretches.bounds.tolist() == [0, 24]


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 64), (torch.bfloat16, 64)])
def test_rows_that_the_kernel_does_not_take_go_another_way(dtype, size):
    assert not flash_rows.fits(torch.zeros(1, 2, 3, size, dtype=dtype))
