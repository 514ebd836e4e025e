"""On-policy distillation: the policy samples, a teacher scores every token, the difference is an advantage.

    kl_t = logprob_policy(t) - logprob_teacher(t)            an unbiased estimate of KL(policy || teacher)
    A_t  = -coefficient * sum_{u >= t} discount^(u - t) kl_u      over the sequence's sampled tokens

The policy's logprob is the one *before the first update* and carries no gradient, so that a policy
gradient on ``A`` descends the reverse KL: with discount 1 of whole answers (what a token costs later is
its own fault), with discount 0 of each token alone, given the tokens before it: biased, with the least
noise. Tokens under a mask of 0, such as a tool's output, cost nothing and are not counted in ``u - t``.

Source: reverse KL on the policy's own samples: GKD with lambda 1 (arXiv 2306.13649) and MiniLLM (arXiv
2306.08543) eq. 2, discount 1; as an advantage with discount 0: Thinking Machines, "On-policy
distillation" (2025), ``kl_penalty_coef`` and ``kl_discount_factor`` of its Tinker cookbook.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rollout.algorithms.advantages.gae import generalized_advantages
from rollout.algorithms.aggregation import masked


@dataclass(frozen=True, slots=True, kw_only=True)
class Distilled:
    """What a teacher says of sampled tokens, ``[C]`` float64, 0 where the mask is."""

    advantages_C: Tensor
    """A_t of the module's head."""
    kl_C: Tensor
    """kl_t, the reverse KL's estimate, in nats; may be below 0."""


def distil(
    old_logprobs_C: Tensor,
    teacher_logprobs_C: Tensor,
    mask_C: Tensor,
    sequence_C: Tensor,
    *,
    coefficient: float = 1.0,
    discount: float = 0.0,
) -> Distilled:
    """What the teacher says of sampled tokens. Sequences must be there whole; nothing carries a gradient.

    A discount above 0 is summed on the CPU: token after token, which an accelerator does slowly.
    """
    old_C, teacher_C = old_logprobs_C.detach().double(), teacher_logprobs_C.detach().double()
    kl_C = masked(old_C, mask_C) - masked(teacher_C, mask_C)
    advantages_C = -coefficient * kl_C
    if discount > 0:
        advantages_C = _discounted(advantages_C, mask_C, sequence_C, discount)
    return Distilled(advantages_C=advantages_C, kl_C=kl_C)


def _discounted(values_C: Tensor, mask_C: Tensor, sequence_C: Tensor, discount: float) -> Tensor:
    """GAE without values and with lambda 1: the discounted sum of what follows."""
    found = generalized_advantages(
        values_C.cpu(),
        torch.zeros_like(values_C, device="cpu"),
        mask_C.cpu(),
        sequence_C.cpu(),
        gamma=discount,
        gae_lambda=1.0,
    )
    return found.advantages_C.to(values_C.device)
