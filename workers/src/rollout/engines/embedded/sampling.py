"""Sampling from logits with noise that belongs to a sample, not to a batch.

The uniform number behind token t of a sample is a hash of (its seed, t) and nothing else: neighbours,
batch size and order cannot touch it, and a sample resumed at token t goes on with the same noise.

Axes: S samples, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rollout.types import SamplingParams

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def uniform_noise(seeds: Sequence[int], num_tokens: int) -> torch.Tensor:
    """float64 [T, S, 1] in [0, 1): element (t, s) is SplitMix64 of ``seeds[s]`` at counter t.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    keys_S = _mix(np.array([seed & (2**64 - 1) for seed in seeds], dtype=np.uint64))
    counters_T = np.arange(1, num_tokens + 1, dtype=np.uint64) * _GOLDEN
    bits_TS = _mix(keys_S[None, :] + counters_T[:, None])
    return torch.from_numpy((bits_TS >> np.uint64(11)) * 2.0**-53)[:, :, None]


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


class Sampler:
    """Draws one token per sample by inverting the cumulative distribution at the sample's noise."""

    def __init__(self, sampling: SamplingParams, vocab_size: int) -> None:
        stops = [token for token in sampling.stop_token_ids if 0 <= token < vocab_size]
        self._stops = torch.tensor(stops, dtype=torch.int64)
        self._is_stop_V = torch.zeros(vocab_size, dtype=torch.bool)
        self._is_stop_V[self._stops] = True
        self._temperature = sampling.temperature
        self._min_new_tokens = sampling.min_new_tokens if stops else 0
        self._early_V: torch.Tensor | None = None
        early = tuple(stops) if self._min_new_tokens else ()
        cuts = bool(self._temperature) and (sampling.top_k > 0 or sampling.top_p < 1.0)
        self._cut = (sampling.top_k, sampling.top_p) if cuts else None
        self.kind = (self._temperature, self._min_new_tokens, early, self._cut)
        """Samplers of one kind draw alike."""

    def pick(
        self, logits_SV: torch.Tensor, position: int, noise_S1: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens int64 [S] and their log-probabilities float32 [S] at new-token ``position``.

        The log-probability is of the distribution sampled from; for temperature 0 (the most likely
        token) it is the model's own, at temperature 1. What ``top_k`` and ``top_p`` leave is the distribution
        sampled from: its probabilities sum to 1. ``logits_SV`` is float32 and is consumed. Both come
        home to the CPU, wherever the logits are.
        """
        if position < self._min_new_tokens:
            logits_SV[:, self._stops.to(logits_SV.device)] = float("-inf")
        tokens_S, logprobs_S = self._draw(logits_SV, noise_S1.to(logits_SV.device))
        return tokens_S.cpu(), logprobs_S.cpu()

    def pick_on_device(
        self, logits_SV: torch.Tensor, position_1: torch.Tensor, noise_S1: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``pick`` whose position is known to the device alone and whose findings stay there.

        The first call on a device copies something there: it is not to be captured.
        """
        if self._min_new_tokens:
            if self._early_V is None:
                self._early_V = self._is_stop_V.to(logits_SV.device)
            early_V = self._early_V & (position_1 < self._min_new_tokens)
            logits_SV.masked_fill_(early_V, float("-inf"))
        return self._draw(logits_SV, noise_S1)

    def distribution(self, logits_SV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities (float32) and cumulative probabilities (float64), both [S, V].

        Computed row by row, so that no row depends on where it lies. ``logits_SV`` is consumed.
        """
        if self._temperature not in {0.0, 1.0}:
            logits_SV.div_(self._temperature)
        if self._cut is not None:
            cut_logits(logits_SV, *self._cut)
        cumulative_SV = torch.softmax(logits_SV, dim=-1).cumsum(-1, dtype=torch.float64)
        return torch.log_softmax(logits_SV, dim=-1), cumulative_SV

    def _draw(
        self, logits_SV: torch.Tensor, noise_S1: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logp_SV, cumulative_SV = self.distribution(logits_SV)
        if self._temperature == 0.0:
            tokens_S1 = logp_SV.argmax(-1, keepdim=True)
        else:
            tokens_S1 = _invert(cumulative_SV, noise_S1)
        return tokens_S1[:, 0], logp_SV.gather(1, tokens_S1)[:, 0]

    def is_stop(self, tokens_S: torch.Tensor) -> torch.Tensor:
        """Whether each token ends its sample, bool [S]."""
        return self._is_stop_V[tokens_S]


def cut_logits(logits_SV: torch.Tensor, top_k: int, top_p: float) -> None:
    """Leave the ``top_k`` largest (0: all), of those the fewest that together have ``top_p``, at least one; in place.

    Of equal logits the lower token comes first.
    """
    ordered = torch.sort(logits_SV, dim=-1, descending=True, stable=True)
    if 0 < top_k < logits_SV.shape[1]:
        ordered.values[:, top_k:] = float("-inf")
    probabilities_SV = torch.softmax(ordered.values.double(), dim=-1)
    before_SV = probabilities_SV.cumsum(-1) - probabilities_SV
    dropped_SV = (before_SV >= top_p) | ordered.values.isneginf()
    dropped_SV[:, 0] = False
    logits_SV.masked_fill_(
        torch.zeros_like(dropped_SV).scatter(1, ordered.indices, dropped_SV), float("-inf")
    )


def _invert(cumulative_SV: torch.Tensor, noise_S1: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative probability exceeds the noise."""
    total_S1 = cumulative_SV[:, -1:]
    tokens_S1 = torch.searchsorted(cumulative_SV, noise_S1 * total_S1, right=True)
    return tokens_S1.clamp_(max=cumulative_SV.shape[1] - 1)
