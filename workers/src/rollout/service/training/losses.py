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
| gspo                | as ppo, r of the sequence (GSPO-token)   | logprobs, advantages        |

A sequence of ``gspo`` is a datum's tokens whose advantage is not 0: those of a prompt, of a tool, or that are masked have 0.

Axes: C scored tokens, B sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rollout.algorithms.surrogate import Surrogate, SurrogateTokens
from rollout.algorithms.surrogates.cispo import Cispo
from rollout.algorithms.surrogates.clip import Clipped, ratio
from rollout.algorithms.surrogates.ratio_level import RatioLevel, level_log_ratios
from rollout.service.calls import CLIPS

DRO_DEFAULTS = {"beta": 0.05}
"""How much a token's distance from what it was sampled with costs."""

Config = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTokens:
    """What a loss sees: ``logprobs_C`` with a gradient, ``inputs`` float32 [C] by name, and int64 ``sequence_C`` in [0, B)."""

    logprobs_C: Tensor
    inputs: Mapping[str, Tensor]
    sequence_C: Tensor

    @property
    def ratios_C(self) -> Tensor:
        """Of each token, to the logprob that it was sampled with."""
        return ratio(self.logprobs_C, self.inputs["logprobs"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """``needs`` and ``may`` are inputs beside ``target_tokens``, float32 [C]; ``defaults`` are all its settings."""

    compute: Callable[[ScoredTokens, Config], Tensor]
    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    defaults: Mapping[str, float]


def _cross_entropy(tokens: ScoredTokens, config: Config) -> Tensor:
    del config
    inputs, logprobs_C = tokens.inputs, tokens.logprobs_C
    return -inputs["weights"] * logprobs_C if "weights" in inputs else -logprobs_C


def _importance_sampling(tokens: ScoredTokens, config: Config) -> Tensor:
    del config
    return -tokens.inputs["advantages"] * tokens.ratios_C


def _ppo(tokens: ScoredTokens, config: Config) -> Tensor:
    return _surrogate(_clipped(config), "Token", tokens)


def _cispo(tokens: ScoredTokens, config: Config) -> Tensor:
    low, high = (config[f"clip_{end}_threshold"] for end in ("low", "high"))
    return _surrogate(Cispo(ratio_min=low, ratio_max=high), "Token", tokens)


def _gspo(tokens: ScoredTokens, config: Config) -> Tensor:
    return _surrogate(_clipped(config), "Sequence", tokens)


def _dro(tokens: ScoredTokens, config: Config) -> Tensor:
    apart_C = tokens.logprobs_C - tokens.inputs["logprobs"]
    spread_C = 0.5 * config["beta"] * apart_C.square()
    return spread_C - tokens.inputs["advantages"] * tokens.logprobs_C


def _clipped(config: Config) -> Clipped:
    low, high = (config[f"clip_{end}_threshold"] for end in ("low", "high"))
    return Clipped(low=1 - low, high=high - 1)


def _surrogate(surrogate: Surrogate, level: RatioLevel, tokens: ScoredTokens) -> Tensor:
    advantages_C, old_C = tokens.inputs["advantages"], tokens.inputs["logprobs"]
    mask_C = torch.ones_like(old_C) if level == "Token" else (advantages_C != 0).float()
    logprobs_C, old_C = tokens.logprobs_C * mask_C, old_C * mask_C
    seen = SurrogateTokens(
        logprobs_C=logprobs_C,
        old_logprobs_C=old_C,
        log_ratios_C=level_log_ratios(level, logprobs_C, old_C, mask_C, tokens.sequence_C),
        advantages_C=advantages_C,
        mask_C=mask_C,
        sequence_C=tokens.sequence_C,
    )
    return surrogate(seen).losses_C


_SAMPLED = ("logprobs", "advantages")
LOSSES: Mapping[str, TokenLoss] = {
    "cross_entropy": TokenLoss(compute=_cross_entropy, may=("weights",), defaults={}),
    "importance_sampling": TokenLoss(compute=_importance_sampling, needs=_SAMPLED, defaults={}),
    "ppo": TokenLoss(compute=_ppo, needs=_SAMPLED, defaults=CLIPS["ppo"]),
    "cispo": TokenLoss(compute=_cispo, needs=_SAMPLED, defaults=CLIPS["cispo"]),
    "gspo": TokenLoss(compute=_gspo, needs=_SAMPLED, defaults=CLIPS["gspo"]),
    "dro": TokenLoss(compute=_dro, needs=_SAMPLED, defaults=DRO_DEFAULTS),
}
"""Every loss that is computed here."""
UNOFFERED = {
    "stable_reinforce": "it needs records that sampling with record_stability_info would keep",
    "custom": "losses are not uploaded",
}
"""What clients can name beside those, and why not."""
