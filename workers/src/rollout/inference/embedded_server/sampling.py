"""One token for each row of logits, each row sampled in its own way with noise of its own.

Axes: S samples, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rollout.engines.embedded.sampling import uniform_noise
from rollout.inference.embedded_server.orders import SamplingOrder

NOISE_TOKENS = 256
"""Noise is made for so many tokens at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedToken:
    """A token with its log-probability before temperature and cuts, and the likeliest ones (``top``)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class RowSampler:
    """The sampler of one completion."""

    def __init__(self, seed: int, sampling: SamplingOrder) -> None:
        self._seed = seed
        self._sampling = sampling
        self._noise: list[float] = []

    def pick(self, logits_V: torch.Tensor, position: int) -> PickedToken:
        """The token at new-token ``position``, from float32 logits."""
        wanted = self._sampling
        token = self._draw(logits_V, position) if wanted.temperature else int(logits_V.argmax())
        if wanted.top_logprobs < 0:
            return PickedToken(token_id=token, logprob=0.0, top=())
        logprobs_V = torch.log_softmax(logits_V, dim=-1)
        top = torch.topk(logprobs_V, min(wanted.top_logprobs, len(logprobs_V)))
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return PickedToken(token_id=token, logprob=float(logprobs_V[token]), top=tuple(pairs))

    def _draw(self, logits_V: torch.Tensor, position: int) -> int:
        wanted = self._sampling
        scaled_V = logits_V.double() / wanted.temperature
        if 0 < wanted.top_k < len(scaled_V):
            least = torch.topk(scaled_V, wanted.top_k).values[-1]
            scaled_V = scaled_V.masked_fill(scaled_V < least, float("-inf"))
        probabilities_V = torch.softmax(scaled_V, dim=-1)
        if wanted.top_p < 1.0:
            probabilities_V = _nucleus(probabilities_V, wanted.top_p)
        cumulative_V = probabilities_V.cumsum(-1)
        place = torch.searchsorted(
            cumulative_V, self._uniform(position) * cumulative_V[-1], right=True
        )
        return min(int(place), len(cumulative_V) - 1)

    def _uniform(self, position: int) -> torch.Tensor:
        while len(self._noise) <= position:
            size = len(self._noise) + NOISE_TOKENS
            self._noise = uniform_noise([self._seed], size)[:, 0, 0].tolist()
        return torch.tensor(self._noise[position], dtype=torch.float64)


def _nucleus(probabilities_V: torch.Tensor, top_p: float) -> torch.Tensor:
    """The likeliest tokens that together have ``top_p``; at least one."""
    ordered = torch.sort(probabilities_V, descending=True)
    before_V = ordered.values.cumsum(-1) - ordered.values
    cut_V = ordered.values.masked_fill(before_V >= max(top_p, 1e-9), 0.0)
    return torch.zeros_like(probabilities_V).scatter(0, ordered.indices, cut_V)


def pick_rows(
    rows: Sequence[RowSampler], logits_SV: torch.Tensor, positions: Sequence[int]
) -> list[PickedToken]:
    """A token for every row."""
    return [row.pick(logits_SV[i], positions[i]) for i, row in enumerate(rows)]
