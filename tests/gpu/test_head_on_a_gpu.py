"""The head's two passes on a CUDA device: values, gradients, memory, and the same bits twice."""

from __future__ import annotations

import pytest
import torch

from rollout.learner.forward.fused import head, trial
from rollout.learner.forward.logprobs import ScoresWanted

DEVICE = torch.device("cuda", 0)
HALVES = [torch.bfloat16, torch.float16]


def wanted_of(num_rows, vocab_size, *, temperature=1.0):
    noise = torch.Generator(DEVICE).manual_seed(0)
    targets = torch.randint(0, vocab_size, (num_rows + 40,), generator=noise, device=DEVICE)
    rows = torch.arange(num_rows, device=DEVICE)
    return ScoresWanted(
        source_C=torch.cat((rows.flip(0), rows[:1].expand(40))),
        targets_C=targets,
        temperature=temperature,
        entropy=True,
        spread=True,
    )


def inputs_of(num_rows, vocab_size, hidden_size, dtype, *, bias=False):
    noise = torch.Generator(DEVICE).manual_seed(1)

    def draw(*shape):
        return torch.randn(shape, generator=noise, device=DEVICE)

    found = [draw(num_rows, hidden_size), draw(vocab_size, hidden_size) * hidden_size**-0.5 * 2]
    found += [draw(vocab_size)] if bias else []
    return [one.to(dtype).requires_grad_() for one in found]


def learned(scores, inputs, wanted):
    for one in inputs:
        one.grad = None
    states, weight, *bias = inputs
    logprobs, entropy, mean = scores(states, weight, bias[0] if bias else None, wanted)
    slope = torch.linspace(-1, 1, len(logprobs), device=DEVICE)
    loss = (logprobs * slope).sum() + 0.1 * (entropy * slope[: len(entropy)]).sum()
    (loss + 0.1 * mean.sum()).backward()
    return [logprobs.detach(), entropy.detach(), mean.detach(), *(one.grad for one in inputs)]


def error(found, right):
    return float((found.double() - right.double()).norm() / right.double().norm())


@pytest.mark.parametrize("dtype", HALVES)
def test_known_numbers_are_right(dtype):
    assert head.is_right(DEVICE, dtype)
    logprobs, entropies, *gradients = trial.head_errors(DEVICE, dtype)
    assert max(logprobs, entropies) <= 1e-5
    assert max(gradients) <= 5e-3


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("num_rows", "vocab_size", "hidden_size", "bias"),
    [(777, 151_936, 896, False), (2048, 50_257, 768, True), (3, 151_936, 128, False)],
)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_whole_logits(
    temperature, num_rows, vocab_size, hidden_size, bias, dtype
):
    inputs = inputs_of(num_rows, vocab_size, hidden_size, dtype, bias=bias)
    wanted = wanted_of(num_rows, vocab_size, temperature=temperature)
    found = learned(head.fused_scores, inputs, wanted)
    plain = learned(trial.plain_scores, inputs, wanted)
    wide = [one.detach().float().requires_grad_() for one in inputs]
    right = learned(trial.plain_scores, wide, wanted)

    for one, other in zip(found[:3], plain[:3], strict=True):
        assert error(one, other) <= 2e-4  # a product of another shape may round a logit otherwise
    for one, other, exact in zip(found[3:], plain[3:], right[3:], strict=True):
        assert error(one, exact) <= max(1.25 * error(other, exact), 2e-3)


def test_the_same_states_give_the_same_bits(exact):
    inputs = inputs_of(3000, 151_936, 896, torch.bfloat16)
    wanted = wanted_of(3000, 151_936)
    first = learned(head.fused_scores, inputs, wanted)
    again = learned(head.fused_scores, inputs, wanted)

    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)


def test_memory_is_that_of_parts_and_of_the_heads_gradient():
    inputs = inputs_of(4096, 151_936, 896, torch.bfloat16)
    wanted = wanted_of(4096, 151_936)
    learned(head.fused_scores, inputs, wanted)
    for one in inputs:
        one.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()

    learned(head.fused_scores, inputs, wanted)

    gradients = sum(one.nbytes for one in inputs)
    assert torch.cuda.max_memory_allocated() - before <= gradients + (384 << 20)
