"""What fused kernels give for known numbers, against plain products in float32 of the same numbers.

No random numbers are drawn, none are used up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch import nn

from rollout.learner.forward.fused import head, layers
from rollout.learner.forward.logprobs import BARRED_LOGIT, ScoresWanted

ERROR_MAX = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""Relative, of any value or gradient: half precision rounds by up to 4e-3."""

NUM_ROWS, VOCAB_SIZE, HIDDEN_SIZE = 37, 1000, 64
INNER_SIZE = 208
"""Of an MLP."""


@contextmanager
def aside() -> Iterator[None]:
    """Gradients of one's own, whoever looks: a layer that is recomputed must not count what a trial keeps for its way back."""

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, keep):
        yield


def head_error(device: torch.device, dtype: torch.dtype) -> float:
    """The largest relative difference of log-probabilities, entropies and gradients."""
    return max(head_errors(device, dtype))


def head_errors(device: torch.device, dtype: torch.dtype) -> list[float]:
    """Of log-probabilities, entropies, and the gradients of states, weight and bias."""
    wanted = ScoresWanted(
        source_C=torch.tensor([5, 0, 1, 1, 1, 36, 20], device=device),
        targets_C=torch.tensor([3, 999, 0, 511, 3, 7, 511], device=device),
        temperature=0.7,
        entropy=True,
        spread=True,
        barred_U=torch.arange(NUM_ROWS, device=device) % 3 == 1,
        barred_V=torch.arange(VOCAB_SIZE, device=device) % 5 == 2,
    )
    shapes = ((NUM_ROWS, HIDDEN_SIZE), (VOCAB_SIZE, HIDDEN_SIZE), (VOCAB_SIZE,))
    inputs = [_numbers(shape, index).to(device, dtype) for index, shape in enumerate(shapes)]
    found = _with_gradients(head.fused_scores, inputs, wanted)
    right = _with_gradients(plain_scores, inputs, wanted)
    return _errors(found, right)


def plain_scores(
    states_UE: torch.Tensor,
    weight_VE: torch.Tensor,
    bias_V: torch.Tensor | None,
    wanted: ScoresWanted,
) -> head.Scores:
    """``fused_scores`` by whole logits, which autograd derives."""
    logits_UV = nn.functional.linear(states_UE, weight_VE, bias_V).float()
    if wanted.barred_U is not None and wanted.barred_V is not None:
        logits_UV = logits_UV.masked_fill(wanted.barred_U[:, None] & wanted.barred_V, BARRED_LOGIT)
    logp_UV = (logits_UV / wanted.temperature).log_softmax(-1)
    entropy_U = -(logp_UV.exp() * logp_UV).sum(-1)
    return logp_UV[wanted.source_C, wanted.targets_C], entropy_U, logp_UV.mean(-1)


def _with_gradients(
    scores: head.Calls, inputs: list[torch.Tensor], wanted: ScoresWanted
) -> list[torch.Tensor]:
    leaves = [one.clone().requires_grad_() for one in inputs]
    found = scores(*leaves, wanted)
    weights = [_numbers(one.shape, 3).to(one.device) for one in found]
    if wanted.barred_U is not None:
        weights[2] = weights[2].masked_fill(wanted.barred_U, 0.0)  # their means are -1e29
    pairs = zip(found, weights, strict=True)
    torch.stack([(one * weight).sum() for one, weight in pairs]).sum().backward()
    values = [one.detach() for one in found]
    return [*values[:2], *(one.grad for one in leaves if one.grad is not None)]


def _numbers(shape: tuple[int, ...] | torch.Size, seed: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.sin((torch.arange(count) + seed).double().square() * 0.37).view(shape).float()


def layer_errors(
    kind: type[nn.Module], size: int, device: torch.device, dtype: torch.dtype
) -> list[float]:
    """Relative differences of a module's values and gradients from those of ``kind``'s own forward.

    Raises TypeError for a class that is not made from a size (norms) or a configuration (MLPs).
    """
    module = _module(kind, size).to(device, dtype)
    for index, parameter in enumerate(module.parameters()):
        parameter.data = _numbers(parameter.shape, index).to(device, dtype)
    fused = layers.FusedNorm(module) if kind.__name__ in layers.NORMS else layers.FusedMlp(module)
    states = _numbers((NUM_ROWS, size), 5).to(device, dtype)
    found, right = (_learned(calls, module, states) for calls in (fused.compute, module.forward))
    return _errors(found, right)


def _module(kind: type[nn.Module], size: int) -> nn.Module:
    if kind.__name__ in layers.NORMS:
        return kind(size, eps=1e-6)
    config = SimpleNamespace(
        hidden_size=size, intermediate_size=INNER_SIZE, hidden_act="silu", mlp_bias=False
    )
    return kind(config)


def _learned(
    calls: Callable[[torch.Tensor], torch.Tensor], module: nn.Module, states: torch.Tensor
) -> list[torch.Tensor]:
    module.zero_grad()
    leaf = states.clone().requires_grad_()
    out = calls(leaf)
    out.backward(_numbers(out.shape, 9).to(out.device, out.dtype))
    gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    assert leaf.grad is not None
    return [out.detach(), leaf.grad, *gradients]


def _errors(found: list[torch.Tensor], right: list[torch.Tensor]) -> list[float]:
    return [
        float((one.double() - other.double()).norm() / other.double().norm())
        for one, other in zip(found, right, strict=True)
    ]
