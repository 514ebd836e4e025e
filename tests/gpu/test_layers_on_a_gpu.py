"""Norms and gated MLPs in one pass on a CUDA device: their own values and gradients, the same bits twice."""

from __future__ import annotations

import pytest
import torch
import zoo_kit

from rollout.learner.forward.check import check_forward
from rollout.learner.forward.fused import layers, trial
from rollout.learner.forward.packed_rows import build_group_row, prepare_model, token_logprobs
from rollout.learner.model.parallel import Parallel

DEVICE = torch.device("cuda", 0)
MODELS = ["llama", "mistral", "qwen2", "qwen3"]


def kinds_of(name):
    known = layers.NORMS | layers.MLPS
    kinds = {type(module) for module in zoo_kit.build(name).modules()}
    return sorted((kind for kind in kinds if kind.__name__ in known), key=lambda k: k.__name__)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [64, 128, 200, 896, 2048, 4096, 5120, 8192])
@pytest.mark.parametrize("name", MODELS)
def test_each_known_module_has_its_own_values_and_gradients(name, size, dtype):
    if dtype == torch.float16 and size > 5120:
        pytest.skip("the MLP's own gradients leave float16's range at this width")
    for kind in kinds_of(name):
        value, *gradients = trial.layer_errors(kind, size, DEVICE, dtype)
        assert value <= 2e-3
        assert max(gradients) <= 5e-3
        assert layers.is_right(kind, size, DEVICE, dtype)


def test_a_norm_of_many_rows_has_the_gradients_of_float32_and_the_same_bits_twice(exact):
    noise = torch.Generator(DEVICE).manual_seed(0)
    states = torch.randn(3, 8191, 896, generator=noise, device=DEVICE) * 3
    slope = torch.randn(3, 8191, 896, generator=noise, device=DEVICE)
    weight = torch.randn(896, generator=noise, device=DEVICE)

    def learned(dtype, calls):
        leaves = [one.bfloat16().to(dtype).requires_grad_() for one in (states, weight)]
        out = calls(*leaves)
        out.backward(slope.bfloat16().to(dtype))
        return [out.detach().float(), *(one.grad.float() for one in leaves)]

    def plain(x, w):
        return w * (x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt())

    found = learned(torch.bfloat16, lambda x, w: layers.fused_norm(x, w, 1e-6))
    again = learned(torch.bfloat16, lambda x, w: layers.fused_norm(x, w, 1e-6))
    right = learned(torch.float32, plain)

    for one, same, other in zip(found, again, right, strict=True):
        assert torch.equal(one, same)
        assert (one - other).norm() <= 4e-3 * other.norm()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computed_so_is_its_own_forward(name, monkeypatch):
    model = zoo_kit.build(name).to(DEVICE, torch.bfloat16)
    prepare_model(model)
    row = build_group_row(zoo_kit.GROUPS).to(DEVICE)

    found = token_logprobs(model, row).logprobs_C.detach()
    check = check_forward(model, torch.bfloat16, Parallel(device=DEVICE))
    monkeypatch.setattr(layers, "_may", lambda *_: False)
    own = token_logprobs(model, row).logprobs_C.detach()

    assert check is not None
    assert check.passes
    assert (found - own).abs().max() <= 0.05
