"""Which samples go into which update, rank and micro-batch: decided from lengths, recorded, replayed.

A step is a list of updates (epochs x mini-batches, in order); an update gives each rank a list of
micro-batches; a micro-batch is a list of chunks that share one row. Pure arithmetic.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rollout.learner.objectives.packing import Chunk, pack_rows, share_among_ranks, split_group
from rollout.seeds import derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """Tokens of a prompt and of each completion (prompt 0 for sequences of their own).

    ``learns`` False: no sample of the group can have a gradient (zero variance, no other loss term),
    so only its forward is computed, for the metrics.
    """

    prompt_tokens: int
    completion_tokens: tuple[int, ...]
    learns: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Chunks computed in one row. ``learns`` as in ``GroupShape``."""

    chunks: tuple[Chunk, ...]
    learns: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimizer update: the micro-batches of each rank."""

    ranks: tuple[tuple[MicroBatch, ...], ...]

    def chunks(self) -> list[Chunk]:
        """All chunks, of all ranks."""
        return [chunk for rank in self.ranks for micro in rank for chunk in micro.chunks]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """All updates of one step, in order."""

    updates: tuple[Update, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """``tokens_max`` bounds a micro-batch; 0 gives every chunk a row of its own."""

    tokens_max: int
    num_ranks: int = 1
    epochs: int = 1
    mini_batches: int = 1


def plan_step(shapes: Sequence[GroupShape], rules: PlanRules, *, seed: int, step: int) -> StepPlan:
    """Cut a batch into updates, ranks and micro-batches.

    One mini-batch takes the groups in data order; several are drawn anew in each epoch, from the
    run's seed and the step alone.
    """
    updates = []
    for epoch in range(rules.epochs):
        order = list(range(len(shapes)))
        if rules.mini_batches > 1:
            random.Random(derive_seed(seed, "minibatch", step, epoch)).shuffle(order)
        updates += [
            _plan_update([(g, shapes[g]) for g in part], rules)
            for part in _cut(order, rules.mini_batches)
        ]
    return StepPlan(updates=tuple(updates))


def _cut(order: Sequence[int], parts: int) -> list[Sequence[int]]:
    """Contiguous parts whose sizes differ by at most one; empty ones are left out."""
    bounds = [len(order) * i // parts for i in range(parts + 1)]
    cut = [order[low:high] for low, high in pairwise(bounds)]
    return [part for part in cut if part]


def _plan_update(groups: Sequence[tuple[int, GroupShape]], rules: PlanRules) -> Update:
    shares = [
        _share([(g, shape) for g, shape in groups if shape.learns is learns], rules, learns=learns)
        for learns in (True, False)
    ]
    return Update(ranks=tuple((*a, *b) for a, b in zip(*shares, strict=True)))


def _share(
    groups: Sequence[tuple[int, GroupShape]], rules: PlanRules, *, learns: bool
) -> list[tuple[MicroBatch, ...]]:
    tokens_max = rules.tokens_max or 1
    chunks: list[Chunk] = []
    lengths: list[int] = []
    for group, shape in groups:
        for chunk in split_group(group, shape.prompt_tokens, shape.completion_tokens, tokens_max):
            chunks.append(chunk)
            completions = sum(shape.completion_tokens[i] for i in chunk.samples)
            lengths.append(shape.prompt_tokens + completions)
    return [
        tuple(
            MicroBatch(chunks=tuple(chunks[share[i]] for i in row), learns=learns)
            for row in pack_rows([lengths[i] for i in share], tokens_max)
        )
        for share in share_among_ranks(lengths, rules.num_ranks)
    ]


def encode_plan(plan: StepPlan) -> dict[str, Any]:
    """Lists and numbers only, as the ledger keeps it."""
    return {
        "updates": [
            [
                [[micro.learns, [[c.group, *c.samples] for c in micro.chunks]] for micro in rank]
                for rank in update.ranks
            ]
            for update in plan.updates
        ]
    }


def decode_plan(plan: dict[str, Any]) -> StepPlan:
    """The inverse of ``encode_plan``."""
    return StepPlan(
        updates=tuple(
            Update(ranks=tuple(tuple(map(_decode_micro, rank)) for rank in update))
            for update in plan["updates"]
        )
    )


def _decode_micro(micro: Sequence[Any]) -> MicroBatch:
    learns, chunks = micro
    return MicroBatch(
        chunks=tuple(Chunk(group=c[0], samples=tuple(c[1:])) for c in chunks), learns=bool(learns)
    )


def micro_batches_of(update: Update, rank: int, *, aligned: bool) -> list[tuple[MicroBatch, bool]]:
    """A rank's micro-batches, and whether each one counts.

    ``aligned`` (sharded models: every rank must take part in every pass) fills up with repeats that
    do not count, until all ranks have as many.
    """
    own = [(micro, True) for micro in update.ranks[rank]]
    if not aligned:
        return own
    spare = next((micro for micros in update.ranks for micro in micros), None)
    if spare is None:
        return own
    longest = max(len(micros) for micros in update.ranks)
    return own + [(spare, False)] * (longest - len(own))
