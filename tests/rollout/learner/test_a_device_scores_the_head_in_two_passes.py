"""The head's scores and gradients in half precision: by parts of positions forward, by parts of the vocabulary backward."""

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

from rollout.learner.forward import head as parts
from rollout.learner.forward.fused import head, trial
from rollout.learner.forward.logprobs import ScoresWanted
from rollout.learner.forward.packed_rows import build_group_row, prepare_model, token_logprobs

CPU = torch.device("cpu")
HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setattr(head, "_kernels", lambda: TorchKernels)
    head.is_right.cache_clear()
    yield
    head.is_right.cache_clear()


def error(found, right):
    return float((found.float() - right.float()).norm() / right.float().norm())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("values", [1, 3000, 20_000, 1 << 27])
def test_known_numbers_have_the_values_and_gradients_of_whole_logits(
    dtype, values, kernels, monkeypatch
):
    monkeypatch.setattr(head, "PART_VALUES", values)

    logprobs, entropies, *gradients = trial.head_errors(CPU, dtype)

    assert max(logprobs, entropies) <= 1e-5
    assert max(gradients) <= 5e-3


def scored(model, row, **asked):
    model.zero_grad()
    stats = token_logprobs(model, row, **asked)
    found = [stats.logprobs_C, stats.entropy_C, stats.mean_logprobs_C]
    found = [one for one in found if one is not None]
    weights = torch.linspace(-1, 1, len(stats.logprobs_C))
    sum((one * weights.roll(k)).sum() for k, one in enumerate(found)).backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])
    return [one.detach() for one in found], gradients


@pytest.mark.parametrize("barred", [False, True])
@pytest.mark.parametrize(
    "asked", [{}, {"entropy": True}, {"entropy": True, "spread": True}, {"spread": True}]
)
def test_a_model_learns_from_the_passes_what_it_learns_from_plain_products(
    asked, barred, kernels, monkeypatch
):
    model = zoo_kit.build("qwen2").to(torch.bfloat16)
    prepare_model(model)
    row = build_group_row(zoo_kit.GROUPS)
    if barred:
        asked = {name: on for name, on in asked.items() if name != "spread"}
        row = row.barring((1, 3), [at % 2 == 0 for at in range(sum(row.lengths))])
    token_logprobs(model, row)
    monkeypatch.setattr(parts, "PART_VALUES", 3 * model.config.vocab_size)
    monkeypatch.setattr(head, "PART_VALUES", 3 * model.config.vocab_size)
    values, gradients = scored(model, row, **asked)
    monkeypatch.setattr(parts, "suits", lambda _: True)

    found, its_gradients = scored(model, row, **asked)

    for one, other in zip(found, values, strict=True):
        assert (one - other).abs().max() <= 1e-4
    assert error(its_gradients, gradients) <= 1e-2


def test_the_loss_at_a_temperature_is_that_of_logits_divided_in_float32(kernels, monkeypatch):
    model = zoo_kit.build("qwen2").to(torch.bfloat16)
    prepare_model(model)
    row = build_group_row(zoo_kit.GROUPS)
    arguments = {"input_ids": row.input_ids, "position_ids": row.position_ids, "use_cache": False}
    logits = model(
        **arguments, rollout_layout=row.layout, attention_mask=row.layout.no_mask
    ).logits[0, row.predict_U]
    right = (logits.float() / 0.7).log_softmax(-1)[row.source_C, row.targets_C]
    token_logprobs(model, row)
    monkeypatch.setattr(parts, "PART_VALUES", 1)
    monkeypatch.setattr(parts, "suits", lambda _: True)

    found = token_logprobs(model, row, temperature=0.7).logprobs_C

    assert (found - right).abs().max() <= 1e-5


def test_a_frozen_head_gets_no_gradient(kernels):
    states = torch.randn(9, 16).bfloat16().requires_grad_()
    weight = torch.randn(100, 16).bfloat16()
    wanted = ScoresWanted(
        source_C=torch.arange(9),
        targets_C=torch.arange(9) * 11,
        temperature=1.0,
        entropy=False,
        spread=False,
        barred_U=None,
        barred_V=None,
    )

    head.fused_scores(states, weight, None, wanted)[0].sum().backward()

    assert weight.grad is None
    assert states.grad.isfinite().all()


@pytest.mark.parametrize("states", [torch.zeros(1, 2, 4), torch.zeros(1, 2, 4).bfloat16()])
def test_processors_and_full_precision_go_on_as_ever(states):
    assert not head.suits(states)


class Wrong(TorchKernels):
    class logit_gradients:  # noqa: N801 - in the place of a function
        def __class_getitem__(cls, grid):
            def call(logits, *args, **constants):
                TorchKernels.logit_gradients[grid](logits, *args, **constants)
                logits[0] *= 2

            return call


def missing():
    raise ModuleNotFoundError("No module named 'triton'")


def uncompiled():
    raise RuntimeError("Failed to find C compiler")


@pytest.mark.parametrize("kernels_of", [missing, uncompiled, lambda: Wrong])
def test_where_the_kernels_are_missing_or_wrong_plain_products_go_on_and_that_is_said_once(
    kernels_of, monkeypatch, caplog
):
    monkeypatch.setattr(head, "_kernels", kernels_of)
    head.is_right.cache_clear()
    before = torch.get_rng_state()
    with caplog.at_level(logging.WARNING):
        found = [head.is_right(CPU, torch.bfloat16) for _ in range(2)]
    head.is_right.cache_clear()

    assert found == [False, False]
    assert len(caplog.records) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_the_right_kernels_are_taken_also_where_no_gradient_is_asked_for(kernels):
    with torch.no_grad():
        assert head.is_right(CPU, torch.bfloat16)


INTERPRETED = """
import torch
from rollout.learner.forward.fused import head, trial
for values in (20_000, 1 << 27):
    head.PART_VALUES = values
    assert max(trial.head_errors(torch.device("cpu"), torch.bfloat16)) <= 1e-2
    assert max(trial.head_errors(torch.device("cpu"), torch.float16)) <= 1e-3
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
