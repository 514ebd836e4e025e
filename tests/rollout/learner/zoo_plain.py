"""The groups that every model of the zoo computes, their plain forward, and how far two answers are apart."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rollout.learner.forward.packed_rows import GroupTokens

VOCAB = 64


def ids(seed: int, count: int) -> tuple[int, ...]:
    noise = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, VOCAB - 3, (count,), generator=noise).tolist())


GROUPS = (
    GroupTokens(prompt_ids=ids(0, 20), completion_ids=(ids(1, 30), ids(2, 1), ids(3, 12))),
    GroupTokens(prompt_ids=ids(4, 3), completion_ids=(ids(5, 9), ids(6, 9))),
)
"""A shared prompt, a completion of one token, sequences longer than the window of 8."""


def plain(model: torch.nn.Module) -> torch.Tensor:
    """Logprobs of all completions, every sequence alone."""
    found = []
    for group in GROUPS:
        for completion in group.completion_ids:
            whole = torch.tensor([group.prompt_ids + completion])
            logits = model(input_ids=whole, use_cache=False).logits[0, :-1].float()
            picked = logits.log_softmax(-1).gather(1, whole[0, 1:, None])[:, 0]
            found.append(picked[len(group.prompt_ids) - 1 :])
    return torch.cat(found)


def gradients(model: torch.nn.Module, logprobs: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    (logprobs * torch.linspace(0.2, 1, logprobs.numel())).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def gradient_gap(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> float:
    """The largest relative difference of a tensor; of a vanishing one (a bias that softmax ignores) its rounding."""
    floor = 1e-3 * max(float(one.norm()) for one in wanted.values())
    if set(found) != set(wanted):
        return float("inf")
    return max(
        float((found[name] - wanted[name]).norm()) / max(float(wanted[name].norm()), floor)
        for name in wanted
    )


def logprob_gap(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, in nats; infinite where one is no number."""
    return float((found - wanted).detach().abs().max().nan_to_num(nan=torch.inf))
