"""Norms and gated MLPs in one pass: the values and gradients of the modules themselves, and theirs where they differ."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys

import pytest
import torch
import zoo_kit
from fused_kit import TorchKernels

from rollout.learner.forward.fused import layers, trial
from rollout.learner.forward.fused.host_norm import host_norm
from rollout.learner.forward.packed_rows import build_group_row, prepare_model, token_logprobs
from rollout.learner.model.policy import recompute_activations

CPU = torch.device("cpu")
MODELS = ["llama", "mistral", "qwen2", "qwen3"]


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setattr(layers, "_kernels", lambda: TorchKernels)
    layers.is_right.cache_clear()
    yield
    layers.is_right.cache_clear()


def kinds_of(name):
    model = zoo_kit.build(name)
    known = layers.NORMS | layers.MLPS
    return {type(module) for module in model.modules() if type(module).__name__ in known}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [64, 200, 2100])
@pytest.mark.parametrize("name", MODELS)
def test_each_known_module_has_its_own_values_and_gradients(name, size, dtype, kernels):
    kinds = kinds_of(name)

    assert len(kinds) == 2
    for kind in kinds:
        value, *gradients = trial.layer_errors(kind, size, CPU, dtype)
        assert value <= 1e-4
        assert max(gradients) <= 5e-3
        assert layers.is_right(kind, size, CPU, dtype)


@pytest.mark.parametrize("size", [64, 200, 2100])
@pytest.mark.parametrize("name", MODELS)
def test_a_processor_has_a_norms_own_values_bit_for_bit_and_its_gradients(name, size):
    kind = next(kind for kind in kinds_of(name) if kind.__name__ in layers.NORMS)

    value, *gradients = trial.layer_errors(kind, size, CPU, torch.float32)

    assert value == 0
    assert len(gradients) == 2
    assert max(gradients) <= 1e-6


@pytest.mark.parametrize("learned", [False, True])
def test_the_gradients_of_a_norm_on_a_processor_are_those_of_the_formula(learned):
    weight = torch.linspace(0.5, 1.5, 6, dtype=torch.float64).requires_grad_(learned)
    states = torch.linspace(-2, 3, 4 * 3 * 6, dtype=torch.float64).view(4, 3, 6).requires_grad_()

    assert torch.autograd.gradcheck(lambda x: host_norm(x, weight, 1e-6), states)
    assert not learned or torch.autograd.gradcheck(lambda w: host_norm(states, w, 1e-6), weight)


def test_a_norm_whose_gradients_are_wrong_keeps_its_own(monkeypatch, caplog):
    monkeypatch.setattr(layers, "host_norm", lambda x, weight, eps: x.tanh() * weight)
    layers.is_right.cache_clear()
    kind = next(kind for kind in kinds_of("qwen2") if kind.__name__ in layers.NORMS)
    with caplog.at_level(logging.WARNING):
        found = layers.is_right(kind, 64, CPU, torch.float32)
    layers.is_right.cache_clear()

    assert not found
    assert len(caplog.records) == 1


def scored(model, row):
    model.zero_grad()
    found = token_logprobs(model, row).logprobs_C
    (found * torch.linspace(-1, 1, len(found))).sum().backward()
    return found.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", MODELS)
def test_a_model_learns_what_it_learns_by_its_own_forward(name, kernels, monkeypatch):
    model = zoo_kit.build(name).to(torch.bfloat16)
    prepare_model(model)
    row = build_group_row(zoo_kit.GROUPS)
    logprobs, gradients = scored(model, row)
    again = scored(model, row)[0]
    monkeypatch.setattr(layers, "_may", lambda *_: True)

    found, its_gradients = scored(model, row)

    assert torch.equal(again, logprobs)
    assert (found - logprobs).abs().max() <= 0.05
    assert (its_gradients - gradients).norm() <= 0.03 * gradients.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_processors_compute_the_very_bits_that_an_untouched_model_computes(dtype):
    model, untouched = (zoo_kit.build("qwen2").to(dtype) for _ in range(2))
    prepare_model(model)
    states = torch.linspace(-2, 2, 5 * model.config.hidden_size).view(1, 5, -1).to(dtype)

    for module, other in zip(model.model.layers, untouched.model.layers, strict=True):
        assert "rollout_fused" in vars(module.mlp)
        assert torch.equal(module.mlp(states), other.mlp(states))
        assert torch.equal(module.input_layernorm(states), other.input_layernorm(states))


class Wrong(TorchKernels):
    class norm_rows:  # noqa: N801 - in the place of a function
        def __class_getitem__(cls, grid):
            def call(x, weight, out, *args, **constants):
                TorchKernels.norm_rows[grid](x, weight, out, *args, **constants)
                out += 1

            return call


def missing():
    raise ModuleNotFoundError("No module named 'triton'")


@pytest.mark.parametrize("kernels_of", [missing, lambda: Wrong])
def test_a_module_that_is_not_computed_so_keeps_its_own_forward_and_that_is_said_once(
    kernels_of, monkeypatch, caplog
):
    monkeypatch.setattr(layers, "_kernels", kernels_of)
    layers.is_right.cache_clear()
    kind = next(kind for kind in kinds_of("qwen2") if kind.__name__ in layers.NORMS)
    with caplog.at_level(logging.WARNING):
        found = [layers.is_right(kind, 64, CPU, torch.bfloat16) for _ in range(2)]
    layers.is_right.cache_clear()

    assert found == [False, False]
    assert len(caplog.records) == 1


def test_models_with_norms_or_activations_of_another_kind_are_left_alone():
    model = zoo_kit.build("gemma2")
    prepare_model(model)

    assert not any("rollout_fused" in vars(module) for module in model.modules())


INTERPRETED = """
import torch
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP, Qwen2RMSNorm
from rollout.learner.forward.fused import trial
for kind in (Qwen2RMSNorm, Qwen2MLP):
    for size in (64, 200):
        assert max(trial.layer_errors(kind, size, torch.device("cpu"), torch.float16)) <= 1e-3
"""


@pytest.mark.skipif(
    not importlib.util.find_spec("triton"), reason="Triton comes with torch for CUDA only"
)
def test_the_kernels_themselves_give_those_values_when_interpreted():
    subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )


def test_a_module_is_tried_within_a_layer_that_is_recomputed_and_its_gradients_are_the_same():
    model = zoo_kit.build("qwen2")
    prepare_model(model)
    row = build_group_row(zoo_kit.GROUPS)
    logprobs, gradients = scored(model, row)
    recompute_activations(model)
    model.train()
    layers.is_right.cache_clear()

    found, its_gradients = scored(model, row)

    assert torch.equal(found, logprobs)
    assert torch.equal(its_gradients, gradients)
