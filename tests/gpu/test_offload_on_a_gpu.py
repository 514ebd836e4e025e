"""Optimizer states in host memory beside a CUDA device: the bits of states on it, and a piece of them there at a time."""

from __future__ import annotations

import pytest
import torch

from rollout.learner.config.optimizer import OptimizerSettings
from rollout.learner.model.offload import OffloadedOptimizer
from rollout.learner.model.optim import build_optimizer

DEVICE = torch.device("cuda", 0)
SIZES = ((1500, 2048), (7,), (1 << 20,), (5001,))
PIECE = 1 << 19
ADAMW = OptimizerSettings(kind="adamw", learning_rate=0.01, weight_decay=0.1)
MOMENTUM = OptimizerSettings(kind="sgd", learning_rate=0.01, momentum=0.9)


def begin(settings, *, offloads):
    draw = torch.Generator().manual_seed(1)
    values = [torch.randn(size, generator=draw).to(DEVICE) for size in SIZES]
    parameters = [torch.nn.Parameter(value) for value in values]
    optimizer = build_optimizer(parameters, settings)
    return parameters, OffloadedOptimizer(optimizer, numbers_max=PIECE) if offloads else optimizer


def step(parameters, optimizer, seed):
    draw = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=draw).to(DEVICE)
    torch.cuda.synchronize(DEVICE)
    torch.cuda.reset_peak_memory_stats(DEVICE)
    there = torch.cuda.memory_allocated(DEVICE)
    optimizer.step()
    return torch.cuda.max_memory_allocated(DEVICE) - there


@pytest.mark.parametrize("settings", [ADAMW, MOMENTUM], ids=["adamw", "momentum"])
@pytest.mark.usefixtures("exact")
def test_steps_in_pieces_have_the_devices_own_bits(settings):
    sides = [begin(settings, offloads=offloads) for offloads in (False, True)]
    for seed in range(2, 6):
        for parameters, optimizer in sides:
            step(parameters, optimizer, seed)
    (wanted, theirs), (found, ours) = sides
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one, other)
        states, held = theirs.state[one], ours.state[other]
        assert states.keys() == held.keys()
        assert all(torch.equal(states[key].cpu(), held[key].cpu()) for key in states)


def test_a_step_has_one_piece_of_the_states_on_the_device():
    parameters, optimizer = begin(ADAMW, offloads=True)
    for seed in range(2, 5):
        taken = step(parameters, optimizer, seed)
        # Both moments of a piece; small tensors take 512 bytes each, large ones up to 2 MiB more.
        assert taken <= 8 * PIECE + (8 << 20)
    moments = [optimizer.state[one][key] for one in parameters for key in ("exp_avg", "exp_avg_sq")]
    assert {one.device.type for one in moments} == {"cpu"}
