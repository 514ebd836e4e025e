"""The decode loop: sample, record, stop, drop what has ended, feed.

Axes: S samples = B groups x G samples, T new tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from rollout.engines.embedded_batch import Batch, BatchSize, Decoder
from rollout.engines.embedded_sampling import Sampler, uniform_noise
from rollout.types import GenerateRequest, SamplingParams

PROMPT_MULTIPLE = 8
"""Prompts of a fixed-shape batch are padded to a multiple of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sampled completion before it is given a version: parallel token ids and logprobs."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Requests ``indices`` decoded together, as a batch of ``num_slots`` groups of this size.

    A batch with ``size.prompt_length`` has a fixed shape: slots without a request are computed all
    the same, and ended samples stay to the end.
    """

    indices: tuple[int, ...]
    num_slots: int
    size: BatchSize


def plan_batches(requests: Sequence[GenerateRequest], groups_max: int) -> list[BatchPlan]:
    """Equal sampling and group size together, near prompt lengths, at most ``groups_max`` groups.

    With ``groups_max`` 1 every group is alone, so nothing of it depends on its neighbours.
    """
    kinds: dict[tuple[SamplingParams, int], list[int]] = {}
    for index, request in enumerate(requests):
        kinds.setdefault((request.sampling, len(request.seeds)), []).append(index)
    plans: list[BatchPlan] = []
    for (sampling, group_size), indices in kinds.items():
        size = BatchSize(group_size=group_size, new_tokens_max=sampling.max_new_tokens)
        ordered = sorted(indices, key=lambda index: len(requests[index].prompt_ids))
        plans += [
            BatchPlan(indices=chunk, num_slots=len(chunk), size=size)
            for chunk in _chunks(ordered, groups_max)
        ]
    return plans


def plan_slots(requests: Sequence[GenerateRequest], num_slots: int) -> list[BatchPlan]:
    """Batches whose shape depends on nothing but a group's own size, limits and prompt length.

    Prompts are padded to a multiple of ``PROMPT_MULTIPLE``, batches to ``num_slots`` groups.
    """
    kinds: dict[tuple[SamplingParams, BatchSize], list[int]] = {}
    for index, request in enumerate(requests):
        size = BatchSize(
            group_size=len(request.seeds),
            new_tokens_max=request.sampling.max_new_tokens,
            prompt_length=-(-len(request.prompt_ids) // PROMPT_MULTIPLE) * PROMPT_MULTIPLE,
        )
        kinds.setdefault((request.sampling, size), []).append(index)
    return [
        BatchPlan(indices=chunk, num_slots=num_slots, size=size)
        for (_, size), indices in kinds.items()
        for chunk in _chunks(indices, num_slots)
    ]


def generate_batch(
    decoder: Decoder, requests: Sequence[GenerateRequest], plan: BatchPlan
) -> list[list[Sample]]:
    """Sample the planned groups; result ``[i][g]`` belongs to ``requests[plan.indices[i]].seeds[g]``."""
    picked = [requests[index] for index in plan.indices]
    spare = plan.num_slots - len(picked)
    group_size = plan.size.group_size
    seeds = [seed for request in picked for seed in request.seeds] + [0] * (spare * group_size)
    prompts = [request.prompt_ids for request in picked] + [(0,)] * spare
    sampler = Sampler(picked[0].sampling, decoder.vocab_size)
    live = _Live(
        num_samples=len(seeds),
        num_spare=spare * group_size,
        group_size=group_size,
        shrinks=not plan.size.prompt_length,
    )
    recorded = _decode(decoder.open(prompts, plan.size), sampler, live, seeds, plan.size)
    samples = list(_cut(*recorded, sampler))
    return [samples[i * group_size : (i + 1) * group_size] for i in range(len(picked))]


def _chunks(indices: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(indices[i : i + size]) for i in range(0, len(indices), size)]


def _decode(
    batch: Batch, sampler: Sampler, live: _Live, seeds: Sequence[int], size: BatchSize
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and logprobs [T, S]; what follows a sample's end token is of no meaning."""
    noise_TS1 = uniform_noise(seeds, size.new_tokens_max)
    tokens_TS = torch.zeros(size.new_tokens_max, len(seeds), dtype=torch.int64)
    logprobs_TS = torch.zeros(size.new_tokens_max, len(seeds))
    logits_SV = batch.first()
    for t in range(size.new_tokens_max):
        tokens, logprobs = sampler.pick(logits_SV, t, live.of(noise_TS1[t]))
        live.record(tokens_TS[t], tokens)
        live.record(logprobs_TS[t], logprobs)
        live.end(sampler.is_stop(tokens))
        if live.num_live == 0 or t + 1 == size.new_tokens_max:
            return tokens_TS[: t + 1], logprobs_TS[: t + 1]
        kept = live.shrink()
        if kept is not None:
            batch.keep(*kept)
            tokens = tokens[kept[1]]
        logits_SV = batch.step(tokens)
    raise AssertionError("new_tokens_max is at least 1")


class _Live:
    """Which samples are still in the batch, and which of those have ended."""

    def __init__(self, *, num_samples: int, num_spare: int, group_size: int, shrinks: bool) -> None:
        self._columns_S: torch.Tensor | None = None  # None: all, in order
        self._ended_S = torch.arange(num_samples) >= num_samples - num_spare
        self._group_size = group_size
        self._shrinks = shrinks
        self.num_live = num_samples - num_spare

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
        if not self._shrinks or 2 * self.num_live > len(self._ended_S):
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
