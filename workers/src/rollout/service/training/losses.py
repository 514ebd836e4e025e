"""The losses by the names that clients know; the numbers are those of the learner's own objectives.

A loss is the *sum* over all tokens of a call, as clients of this protocol expect, not the mean that a manifest asks for:
divide weights or advantages beforehand for a mean. Gradients of several calls add up until the optimizer's step.

| name                | loss of a token                          | inputs beside target_tokens |
| ------------------- | ---------------------------------------- | --------------------------- |
| cross_entropy       | -weight logprob                          | weights (1 where left out)  |
| importance_sampling | -A exp(logprob - q)                      | logprobs (q), advantages    |
| ppo                 | max(-A r, -A clip(r, low, high))         | logprobs, advantages        |
| dro                 | -A logprob + beta/2 (logprob - q)^2      | logprobs, advantages        |
| cispo               | -sg(clip(r, low, high)) A logprob        | logprobs, advantages        |

Axes: C scored tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rollout.algorithms.surrogate import Surrogate, SurrogateTokens
from rollout.algorithms.surrogates.cispo import Cispo
from rollout.algorithms.surrogates.clip import Clipped, ratio

CLIP_DEFAULTS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
"""Bounds of the ratio itself, not distances from 1."""

DRO_DEFAULTS = {"beta": 0.05}
"""How much a token's distance from what it was sampled with costs."""

Inputs = Mapping[str, Tensor]
Config = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """``needs`` and ``may`` are inputs beside ``target_tokens``, float32 [C]; ``defaults`` are all its settings."""

    compute: Callable[[Tensor, Inputs, Config], Tensor]
    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    defaults: Mapping[str, float]


def _cross_entropy(logprobs_C: Tensor, inputs: Inputs, config: Config) -> Tensor:
    del config
    return -inputs["weights"] * logprobs_C if "weights" in inputs else -logprobs_C


def _importance_sampling(logprobs_C: Tensor, inputs: Inputs, config: Config) -> Tensor:
    del config
    return -inputs["advantages"] * ratio(logprobs_C, inputs["logprobs"])


def _ppo(logprobs_C: Tensor, inputs: Inputs, config: Config) -> Tensor:
    low, high = (config[name] for name in CLIP_DEFAULTS)
    return _surrogate(Clipped(low=1 - low, high=high - 1), logprobs_C, inputs)


def _cispo(logprobs_C: Tensor, inputs: Inputs, config: Config) -> Tensor:
    low, high = (config[name] for name in CLIP_DEFAULTS)
    return _surrogate(Cispo(ratio_min=low, ratio_max=high), logprobs_C, inputs)


def _dro(logprobs_C: Tensor, inputs: Inputs, config: Config) -> Tensor:
    apart_C = logprobs_C - inputs["logprobs"]
    return 0.5 * config["beta"] * apart_C.square() - inputs["advantages"] * logprobs_C


def _surrogate(surrogate: Surrogate, logprobs_C: Tensor, inputs: Inputs) -> Tensor:
    old_C = inputs["logprobs"]
    tokens = SurrogateTokens(
        logprobs_C=logprobs_C,
        old_logprobs_C=old_C,
        log_ratios_C=logprobs_C - old_C,
        advantages_C=inputs["advantages"],
        mask_C=torch.ones_like(old_C),
        sequence_C=torch.zeros_like(old_C, dtype=torch.int64),
    )
    return surrogate(tokens).losses_C


_SAMPLED = ("logprobs", "advantages")
LOSSES: Mapping[str, TokenLoss] = {
    "cross_entropy": TokenLoss(compute=_cross_entropy, may=("weights",), defaults={}),
    "importance_sampling": TokenLoss(compute=_importance_sampling, needs=_SAMPLED, defaults={}),
    "ppo": TokenLoss(compute=_ppo, needs=_SAMPLED, defaults=CLIP_DEFAULTS),
    "cispo": TokenLoss(compute=_cispo, needs=_SAMPLED, defaults=CLIP_DEFAULTS),
    "dro": TokenLoss(compute=_dro, needs=_SAMPLED, defaults=DRO_DEFAULTS),
}
"""Every loss that is computed here."""
UNOFFERED = {
    "gspo": "it is of whole sequences, and a call does not say which tokens of one were sampled",
    "stable_reinforce": "it needs records that sampling with record_stability_info would keep",
    "custom": "losses are not uploaded",
}
"""What clients can name beside those, and why not."""
