"""The decode loop: sample, record, stop, drop what has ended, feed.

Axes: S samples = B groups x G samples, T new tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from rollout.engines.embedded_batch import Batch, Decoder
from rollout.engines.embedded_sampling import Sampler, uniform_noise
from rollout.types import GenerateRequest, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sampled completion before it is given a version: parallel token ids and logprobs."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool


def plan_batches(requests: Sequence[GenerateRequest], groups_max: int) -> list[list[int]]:
    """Indices of requests that are decoded together: equal sampling and group size, near lengths.

    With ``groups_max`` 1 every group is alone, so nothing of it depends on its neighbours.
    """
    kinds: dict[tuple[SamplingParams, int], list[int]] = {}
    for index, request in enumerate(requests):
        kinds.setdefault((request.sampling, len(request.seeds)), []).append(index)
    batches: list[list[int]] = []
    for indices in kinds.values():
        ordered = sorted(indices, key=lambda index: len(requests[index].prompt_ids))
        batches += [ordered[i : i + groups_max] for i in range(0, len(ordered), groups_max)]
    return batches


def generate_batch(
    decoder: Decoder, requests: Sequence[GenerateRequest], vocab_size: int
) -> list[list[Sample]]:
    """Sample groups of equal size and sampling together; result ``[i][g]`` as in ``Engine.generate``."""
    sampling, group_size = requests[0].sampling, len(requests[0].seeds)
    seeds = [seed for request in requests for seed in request.seeds]
    prompts = [request.prompt_ids for request in requests]
    sampler = Sampler(sampling, vocab_size)
    batch = decoder.open(prompts, group_size, sampling.max_new_tokens)
    recorded = _decode(batch, sampler, seeds, group_size, sampling.max_new_tokens)
    samples = list(_cut(*recorded, sampler))
    return [samples[i : i + group_size] for i in range(0, len(samples), group_size)]


def _decode(
    batch: Batch, sampler: Sampler, seeds: Sequence[int], group_size: int, new_tokens_max: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and logprobs [T, S]; what follows a sample's end token is of no meaning."""
    noise_TS1 = uniform_noise(seeds, new_tokens_max)
    tokens_TS = torch.zeros(new_tokens_max, len(seeds), dtype=torch.int64)
    logprobs_TS = torch.zeros(new_tokens_max, len(seeds))
    live = _Live(len(seeds), group_size)
    logits_SV = batch.first()
    for t in range(new_tokens_max):
        tokens, logprobs = sampler.pick(logits_SV, t, live.of(noise_TS1[t]))
        live.record(tokens_TS[t], tokens)
        live.record(logprobs_TS[t], logprobs)
        live.end(sampler.is_stop(tokens))
        if live.num_live == 0 or t + 1 == new_tokens_max:
            return tokens_TS[: t + 1], logprobs_TS[: t + 1]
        kept = live.shrink()
        if kept is not None:
            batch.keep(*kept)
            tokens = tokens[kept[1]]
        logits_SV = batch.step(tokens)
    return tokens_TS, logprobs_TS


class _Live:
    """Which samples are still in the batch, and which of those have ended."""

    def __init__(self, num_samples: int, group_size: int) -> None:
        self._columns_S: torch.Tensor | None = None  # None: all, in order
        self._ended_S = torch.zeros(num_samples, dtype=torch.bool)
        self._group_size = group_size
        self.num_live = num_samples

    def of(self, all_S: torch.Tensor) -> torch.Tensor:
        return all_S if self._columns_S is None else all_S[self._columns_S]

    def record(self, all_S: torch.Tensor, values_S: torch.Tensor) -> None:
        if self._columns_S is None:
            all_S.copy_(values_S)
        else:
            all_S[self._columns_S] = values_S

    def end(self, ended_S: torch.Tensor) -> None:
        self._ended_S |= ended_S
        self.num_live = len(self._ended_S) - int(self._ended_S.sum())

    def shrink(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Groups and samples to go on with, once that halves the batch; groups stay equally large."""
        if 2 * self.num_live > len(self._ended_S):
            return None
        ended_BG = self._ended_S.view(-1, self._group_size)
        live_B = self._group_size - ended_BG.sum(1)
        groups_B = live_B.nonzero()[:, 0]
        size = int(live_B.max())
        if 2 * len(groups_B) * size > len(self._ended_S):
            return None
        members = ended_BG[groups_B].to(torch.uint8).argsort(dim=1, stable=True)[:, :size]
        samples_S = (groups_B[:, None] * self._group_size + members).reshape(-1)
        self._columns_S = samples_S if self._columns_S is None else self._columns_S[samples_S]
        self._ended_S, self._group_size = self._ended_S[samples_S], size
        return groups_B, samples_S


def _cut(tokens_TS: torch.Tensor, logprobs_TS: torch.Tensor, sampler: Sampler) -> Iterator[Sample]:
    """Each sample up to and with its end token."""
    stops_ST = sampler.is_stop(tokens_TS.t()).to(torch.uint8)
    stopped_S = stops_ST.any(1).tolist()
    ends_S = (stops_ST.argmax(1) + 1).tolist()
    tokens_ST, logprobs_ST = tokens_TS.t().tolist(), logprobs_TS.t().tolist()
    for stopped, end, ids, logprobs in zip(stopped_S, ends_S, tokens_ST, logprobs_ST, strict=True):
        length = end if stopped else len(ids)
        yield Sample(
            token_ids=tuple(ids[:length]), logprobs=tuple(logprobs[:length]), stopped=stopped
        )
