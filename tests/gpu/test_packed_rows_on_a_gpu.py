"""The learner's forward and backward on a CUDA device, against plain products and against transformers."""

from __future__ import annotations

import pytest
import torch
import zoo_kit

from rollout.learner.forward import flash_rows
from rollout.learner.forward.attention import _RowAttention
from rollout.learner.forward.check import check_forward
from rollout.learner.forward.packed_rows import build_group_row, prepare_model, token_logprobs
from rollout.learner.model.parallel import Parallel
from rollout.models.forwards import PACKED, chooses_experts

DEVICE = torch.device("cuda")
SHAPES = {
    "short": [(5, (3, 1, 7)), (1, (1, 1)), (9, (4,))],
    "mixed": [(300, (200, 31, 200)), (70, (2, 90)), (3, (1,))],
    "long": [(1500, (700, 1300))],
}


def row_of(shapes):
    return build_group_row(
        [
            zoo_kit.GroupTokens(
                prompt_ids=zoo_kit.ids(i, prompt),
                completion_ids=tuple(zoo_kit.ids(9 * i + j, n) for j, n in enumerate(completions)),
            )
            for i, (prompt, completions) in enumerate(shapes)
        ]
    ).to(DEVICE)


def heads(num_tokens, size, dtype, kv_heads=2):
    noise = torch.Generator(DEVICE).manual_seed(0)
    return [
        torch.randn(1, n, num_tokens, size, generator=noise, device=DEVICE)
        .to(dtype)
        .float()
        .to(dtype)
        .requires_grad_()
        for n in (6, kv_heads, kv_heads)
    ]


def attended(calls, inputs, grad):
    out = calls(*inputs)
    out.backward(grad.to(out.dtype))
    return [out.detach().float(), *(x.grad.float() for x in inputs)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [16, 64, 96, 128, 256])
@pytest.mark.parametrize("shapes", SHAPES)
def test_two_flash_calls_equal_plain_products_in_float32(shapes, size, dtype):
    row = row_of(SHAPES[shapes])
    layout, scale = row.layout, size**-0.5
    halves = heads(row.num_tokens, size, dtype)
    grad = torch.randn(1, row.num_tokens, 6, size, device=DEVICE)
    wide = [x.detach().float().requires_grad_() for x in halves]
    assert flash_rows.fits(halves[0])

    found = attended(
        lambda q, k, v: flash_rows.flash_rows(q, k, v, layout.segments, scale), halves, grad
    )
    right = attended(lambda q, k, v: _RowAttention.apply(q, k, v, layout, scale), wide, grad)

    for one, other in zip(found, right, strict=True):
        assert one.isfinite().all()
        assert (one - other).norm() <= 1e-2 * other.norm()


def test_the_same_row_gives_the_same_bits(exact):
    row = row_of(SHAPES["mixed"])
    inputs = heads(row.num_tokens, 64, torch.bfloat16)
    grad = torch.randn(1, row.num_tokens, 6, 64, device=DEVICE)
    runs = []
    for _ in range(3):
        for x in inputs:
            x.grad = None
        runs.append(
            attended(
                lambda q, k, v: flash_rows.flash_rows(q, k, v, row.layout.segments, 0.125),
                inputs,
                grad,
            )
        )

    for other in runs[1:]:
        for one, again in zip(runs[0], other, strict=True):
            assert torch.equal(one, again)


@pytest.mark.parametrize("kind", sorted(PACKED))
def test_models_in_bfloat16_are_computed_as_themselves(kind):
    try:
        model = zoo_kit.build(kind)
    except zoo_kit.NotBuiltError as error:
        pytest.skip(str(error))
    if chooses_experts(model.config.to_dict()):
        pytest.skip("random experts are nearly even: rounding alone chooses others")
    model = model.to(DEVICE, torch.bfloat16)
    prepare_model(model)

    found = check_forward(model, torch.bfloat16, Parallel(device=DEVICE))

    assert found is not None
    assert found.passes


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3", "mistral", "gemma2", "qwen3_moe"])
def test_models_in_float32_have_their_own_logprobs_and_gradients(kind):
    model, reference = zoo_kit.build(kind).to(DEVICE), zoo_kit.build(kind).to(DEVICE)
    prepare_model(model)
    with torch.device(DEVICE):
        want = zoo_kit.plain(reference)
    whole = zoo_kit.gradients(reference, want.cpu())

    got = token_logprobs(model, build_group_row(zoo_kit.GROUPS).to(DEVICE)).logprobs_C

    assert (got - want).abs().max() <= zoo_kit.GAP_MAX
    assert zoo_kit.gradient_gap(zoo_kit.gradients(model, got.cpu()), whole) <= 2e-3
