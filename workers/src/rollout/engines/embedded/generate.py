"""The decode loop: sample, record, stop, drop what has ended, feed; and the scoring of replies that are given.

Axes: S samples = B groups x G samples, T new tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch

from rollout.engines.embedded.batch import BatchSize, Decoder, DecodingBatch, RoutedBatch
from rollout.engines.embedded.progress import GenerationWatch
from rollout.engines.embedded.sampling import Sampler, uniform_noise
from rollout.engines.embedded.steps.batch import StaticBatch
from rollout.engines.embedded.text_ends import Scanners, TextEnds
from rollout.engines.stops import StopTexts
from rollout.errors import EngineError
from rollout.seams import SampleProgress
from rollout.types import ExpertRoutes, Finish, GenerateRequest, SamplingParams

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion before it is given a version: parallel token ids and logprobs, those of the choices it is one of, and routes."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    choice_logprobs: tuple[float, ...] = ()
    routes: ExpertRoutes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Requests ``indices`` decoded together, as groups of this size."""

    indices: tuple[int, ...]
    size: BatchSize


def plan_batches(
    requests: Sequence[GenerateRequest], groups_max: int, widths: Sequence[tuple[int, ...]] = ()
) -> list[BatchPlan]:
    """Equal sampling and rows together, choices apart from what is sampled, near prompt lengths, at most ``groups_max`` groups.

    ``widths``, one per request: the fixed shapes that its group may be decoded in (``BatchSize``); requests of
    unlike ones are apart. Without them nothing is fixed: with ``groups_max`` 1 every group is alone, so nothing
    of it depends on its neighbours. Token limits may differ within a batch: samples that go on behind a prefix
    have less to come.
    """
    kinds: dict[tuple[SamplingParams, bool, bool, int, tuple[int, ...]], list[int]] = {}
    for index, request in enumerate(requests):
        shape = widths[index] if widths else ()
        sampling = replace(request.sampling, max_new_tokens=0)
        routed = request.routes_from is not None
        kind = (sampling, routed, bool(request.choices), num_rows(request), shape)
        kinds.setdefault(kind, []).append(index)
    plans: list[BatchPlan] = []
    for (_, routed, _, group_size, shape), indices in kinds.items():
        ordered = sorted(indices, key=lambda index: len(requests[index].prompt_ids))
        for chunk in _chunks(ordered, groups_max):
            longest = max(tokens_max(requests[index]) for index in chunk)
            size = BatchSize(
                group_size=group_size, new_tokens_max=longest, widths=shape, routes=routed
            )
            plans.append(BatchPlan(indices=chunk, size=size))
    return plans


def num_rows(request: GenerateRequest) -> int:
    """Rows of a batch that a request takes: one for each completion, or for each choice."""
    return len(request.choices) or len(request.seeds)


def tokens_max(request: GenerateRequest) -> int:
    """Tokens behind the prompt, at most."""
    return max(map(len, request.choices), default=request.sampling.max_new_tokens)


def generate_batch(
    decoder: Decoder,
    requests: Sequence[GenerateRequest],
    plan: BatchPlan,
    watch: GenerationWatch,
    stops: StopTexts,
) -> list[list[Sample]]:
    """Sample the planned groups; result ``[i][g]`` belongs to ``requests[plan.indices[i]].seeds[g]``."""
    picked = [requests[index] for index in plan.indices]
    if picked[0].choices:
        return _score_choices(decoder, picked, plan, watch)
    group_size = plan.size.group_size
    seeds = [seed for request in picked for seed in request.seeds]
    prompts = [request.prompt_ids for request in picked]
    limits = [request.sampling.max_new_tokens for request in picked for _ in request.seeds]
    live = _Live(num_samples=len(seeds), group_size=group_size, whole=bool(plan.size.widths))
    tape = _Tape(
        Sampler(picked[0].sampling, decoder.vocab_size),
        seeds,
        plan.size.new_tokens_max,
        limits,
        [stops.scanner(request) for request in picked for _ in request.seeds],
    )
    watch.begin(plan.indices, lambda: _grouped(tape.look(), group_size))
    batch = decoder.open(prompts, plan.size)
    _decode(_drawing(batch, tape, live), tape, live, watch)
    watch.end()
    samples = list(tape.cut())
    if plan.size.routes and tape.length:
        samples = _with_routes(samples, batch, picked)
    return _grouped(samples, group_size)


def _with_routes(
    samples: Sequence[Sample], batch: DecodingBatch, requests: Sequence[GenerateRequest]
) -> list[Sample]:
    """Samples with the experts of their tokens, from where each request wants them to the last token but one."""
    if not isinstance(batch, RoutedBatch):
        raise EngineError(
            "the experts of each token are wanted of an engine that does not know them"
        )
    chosen = batch.routes()
    wide = chosen.element_size() > 1
    form = ExpertRoutes(num_layers=chosen.shape[2], top_k=chosen.shape[3], wide=wide)
    asked = [request for request in requests for _ in request.seeds]
    found = []
    for sample, request, own in zip(samples, asked, chosen, strict=True):
        end = len(request.prompt_ids) + len(sample.token_ids) - 1
        told = own[request.routes_from or 0 : end].contiguous().numpy().tobytes()
        found.append(replace(sample, routes=replace(form, chosen=told)))
    return found


def _score_choices(
    decoder: Decoder,
    requests: Sequence[GenerateRequest],
    plan: BatchPlan,
    watch: GenerationWatch,
) -> list[list[Sample]]:
    """The likeliest choice of each request for each of its seeds; nothing where samples are wanted as they stand."""
    if watch.asked:
        nothing = Sample(token_ids=(), logprobs=(), finish="interrupted")
        return [[nothing] * len(request.seeds) for request in requests]
    states = [[SampleProgress(state="running")] * len(request.seeds) for request in requests]
    watch.begin(plan.indices, lambda: states)
    batch = decoder.open([request.prompt_ids for request in requests], plan.size)
    choices = [choice for request in requests for choice in request.choices]
    logprobs_ST = _given_logprobs(batch, choices, plan.size.new_tokens_max)
    states = [
        [SampleProgress(state="ended", num_tokens=1)] * len(request.seeds) for request in requests
    ]
    watch.end()
    scored = [
        tuple(logprobs[: len(choice)])
        for choice, logprobs in zip(choices, logprobs_ST, strict=True)
    ]
    groups = _grouped(scored, plan.size.group_size)
    return [
        [_likeliest(request.choices, group)] * len(request.seeds)
        for request, group in zip(requests, groups, strict=True)
    ]


def _given_logprobs(
    batch: DecodingBatch, choices: Sequence[Sequence[int]], length: int
) -> list[list[float]]:
    """Logprobs [S, T] of given tokens at temperature 1; what stands behind a choice's end is of no meaning."""
    tokens_TS = torch.tensor([[*choice, *[0] * (length - len(choice))] for choice in choices]).t()
    found = []
    for t, tokens_S in enumerate(tokens_TS):
        logits_SV = batch.step(tokens_TS[t - 1]) if t else batch.first()
        logp_SV = torch.log_softmax(logits_SV, dim=-1)
        found.append(logp_SV.gather(1, tokens_S[:, None].to(logp_SV.device))[:, 0].cpu())
    return torch.stack(found, dim=1).tolist()


def _likeliest(choices: Sequence[tuple[int, ...]], logprobs: Sequence[tuple[float, ...]]) -> Sample:
    """The choice of the highest sum, the first of equals."""
    sums = tuple(map(math.fsum, logprobs))
    best = max(range(len(sums)), key=sums.__getitem__)
    return Sample(
        token_ids=choices[best], logprobs=logprobs[best], finish="stop", choice_logprobs=sums
    )


def _grouped(values: Sequence[T], size: int) -> list[list[T]]:
    return [list(values[i : i + size]) for i in range(0, len(values), size)]


def _chunks(indices: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(indices[i : i + size]) for i in range(0, len(indices), size)]


class _Tape:
    """What is sampled, token by token [T, S]; what follows a sample's end is of no meaning.

    ``limits`` are the tokens that each sample may have.
    """

    def __init__(
        self,
        sampler: Sampler,
        seeds: Sequence[int],
        num_tokens: int,
        limits: Sequence[int],
        scanners: Scanners,
    ) -> None:
        self.sampler, self.length, self.num_tokens = sampler, 0, num_tokens
        self.noise_TS1 = uniform_noise(seeds, num_tokens)
        self.tokens_TS = torch.zeros(num_tokens, len(seeds), dtype=torch.int64)
        self.logprobs_TS = torch.zeros(num_tokens, len(seeds))
        self.limits_S = torch.tensor(limits)
        self._limits = limits
        self._texts = TextEnds(scanners) if any(scanners) else None
        self._even = min(limits) == num_tokens

    def said_stop(self, live: _Live, tokens_S: torch.Tensor) -> torch.Tensor | None:
        """Which live samples have said a stop text with these tokens; None where no text ends any."""
        if self._texts is None:
            return None
        return self._texts.hear(live.samples, live.ended_S, tokens_S, self.length)

    def at_limit(self, live: _Live) -> torch.Tensor | None:
        """Which live samples have all the tokens they may have; None while none can have."""
        return None if self._even else live.of(self.limits_S) <= self.length

    def look(self) -> list[SampleProgress]:
        """How far each sample is; may be called while another thread writes."""
        ends = zip(*self._ends(self.length), self._limits, strict=False)
        return [
            SampleProgress(
                state="ended" if stopped or end >= limit else "running",
                num_tokens=min(end, limit),
            )
            for stopped, end, limit in ends
        ]

    def cut(self) -> Iterator[Sample]:
        """Each sample up to and with the token that ended it, or to its limit, or to where it was interrupted."""
        stopped_S, ends_S = self._ends(self.length)
        rows = zip(self.tokens_TS.t().tolist(), self.logprobs_TS.t().tolist(), strict=True)
        for (ids, logprobs), stopped, end, limit in zip(
            rows, stopped_S, ends_S, self._limits, strict=False
        ):
            length = min(end, limit)
            whole: Finish = "length" if length == limit else "interrupted"
            yield Sample(
                token_ids=tuple(ids[:length]),
                logprobs=tuple(logprobs[:length]),
                finish="stop" if stopped and end <= limit else whole,
            )

    def _ends(self, length: int) -> tuple[list[bool], list[int]]:
        """Of each sample: whether it has stopped, and the length up to there or so far."""
        if not length:
            return [False] * len(self.limits_S), [0] * len(self.limits_S)
        stops_ST = self.sampler.is_stop(self.tokens_TS[:length].t()).to(torch.uint8)
        stopped_S = stops_ST.any(1).bool()
        ends_S = torch.where(stopped_S, stops_ST.argmax(1) + 1, length)
        if self._texts is not None:
            said_S = torch.tensor(self._texts.ends)
            stopped_S |= said_S > 0
            ends_S = torch.where(said_S > 0, torch.minimum(said_S, ends_S), ends_S)
        return stopped_S.tolist(), ends_S.tolist()


class _Drawing(Protocol):
    """A batch that gives tokens."""

    def draw(self, tokens_max: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The next tokens and logprobs [T, S] of all samples in it, at least one row; on the CPU."""
        ...

    def keep(self, groups_B: torch.Tensor, samples_S: torch.Tensor) -> None:
        """Go on with these."""
        ...


class _HostDrawing:
    """Draws each token from the logits of a batch that knows no sampling."""

    def __init__(self, batch: DecodingBatch, tape: _Tape, live: _Live) -> None:
        self._batch, self._tape, self._live = batch, tape, live
        self._tokens_S: torch.Tensor | None = None

    def draw(self, tokens_max: int) -> tuple[torch.Tensor, torch.Tensor]:
        del tokens_max
        last, t = self._tokens_S, self._tape.length
        logits_SV = self._batch.first() if last is None else self._batch.step(last)
        noise_S1 = self._live.of(self._tape.noise_TS1[t])
        self._tokens_S, logprobs_S = self._tape.sampler.pick(logits_SV, t, noise_S1)
        return self._tokens_S[None], logprobs_S[None]

    def keep(self, groups_B: torch.Tensor, samples_S: torch.Tensor) -> None:
        self._batch.keep(groups_B, samples_S)
        self._tokens_S = None if self._tokens_S is None else self._tokens_S[samples_S]


def _drawing(batch: DecodingBatch, tape: _Tape, live: _Live) -> _Drawing:
    if isinstance(batch, StaticBatch):
        batch.draw_with(tape.sampler, tape.noise_TS1[:, :, 0])
        return batch
    return _HostDrawing(batch, tape, live)


def _decode(batch: _Drawing, tape: _Tape, live: _Live, watch: GenerationWatch) -> None:
    """Sample until every sample has ended, or somebody asks for what there is."""
    while not watch.asked:
        for tokens, logprobs in zip(*batch.draw(tape.num_tokens - tape.length), strict=True):
            _hear(tape, live, tokens, logprobs)
        if live.num_live == 0 or tape.length == tape.num_tokens:
            return
        kept = None if watch.asked else live.shrink()
        if kept is not None:
            batch.keep(*kept)


def _hear(tape: _Tape, live: _Live, tokens: torch.Tensor, logprobs: torch.Tensor) -> None:
    """Record a token of every live sample, and which samples it ends."""
    live.record(tape.tokens_TS[tape.length], tokens)
    live.record(tape.logprobs_TS[tape.length], logprobs)
    tape.length += 1
    ended = (tape.said_stop(live, tokens), tape.sampler.is_stop(tokens), tape.at_limit(live))
    for some in ended:
        if some is not None:
            live.end(some)


class _Live:
    """Which samples are still in the batch, and which of those have ended. ``whole``: groups leave it whole."""

    def __init__(self, *, num_samples: int, group_size: int, whole: bool) -> None:
        self._columns_S: torch.Tensor | None = None  # None: all, in order
        self.ended_S = torch.zeros(num_samples, dtype=torch.bool)
        self._group_size = group_size
        self._whole = whole
        self.num_live = num_samples

    @property
    def samples(self) -> list[int]:
        """Which sample lies in each column."""
        all_S = range(len(self.ended_S))
        return list(all_S) if self._columns_S is None else self._columns_S.tolist()

    def of(self, all_S: torch.Tensor) -> torch.Tensor:
        return all_S if self._columns_S is None else all_S[self._columns_S]

    def record(self, all_S: torch.Tensor, values_S: torch.Tensor) -> None:
        if self._columns_S is None:
            all_S.copy_(values_S)
        else:
            all_S[self._columns_S] = values_S

    def end(self, ended_S: torch.Tensor) -> None:
        self.ended_S |= ended_S
        self.num_live = len(self.ended_S) - int(self.ended_S.sum())

    def shrink(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Groups and samples to go on with, once that halves the batch; groups stay equally large."""
        if 2 * self.num_live > len(self.ended_S):
            return None
        ended_BG = self.ended_S.view(-1, self._group_size)
        live_B = self._group_size - ended_BG.sum(1)
        groups_B = live_B.nonzero()[:, 0]
        size = self._group_size if self._whole else int(live_B.max())
        if 2 * len(groups_B) * size > len(self.ended_S):
            return None
        order_BG = ended_BG[groups_B].to(torch.uint8).argsort(dim=1, stable=True)
        members = torch.arange(size)[None] if self._whole else order_BG[:, :size]
        samples_S = (groups_B[:, None] * self._group_size + members).reshape(-1)
        self._columns_S = samples_S if self._columns_S is None else self._columns_S[samples_S]
        self.ended_S, self._group_size = self.ended_S[samples_S], size
        return groups_B, samples_S
