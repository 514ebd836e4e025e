"""Looks at a step's tokens while its losses are computed, sample by sample.

Axes: C scored tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.kl import kl_estimate
from rollout.algorithms.surrogates.clip import ratio
from rollout.learner.objectives.contract import MicroLoss, TokenView, ValuePart, ValueWork, Work
from rollout.learner.objectives.plan import GroupShape, MicroBatch, Update

Place = tuple[int, int]
"""Position of a group (or row of data) in the batch, and of a sample, or one of its rows, in it."""

COLUMNS = ("logprobs_C", "entropy_C", "mask_C", "old_logprobs_C", "actor_logprobs_C")


class Observed:
    """A step's work that keeps what its tokens said; in all else the work itself."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._seen: dict[Place, list[dict[str, Tensor]]] = {}

    def shapes(self) -> Sequence[GroupShape]:
        """As the work."""
        return self._work.shapes()

    def prepare(self, model: nn.Module, passes: Sequence[Sequence[MicroBatch]]) -> None:
        """As the work."""
        self._work.prepare(model, passes)

    def denominators(self, update: Update) -> Denominators:
        """As the work."""
        return self._work.denominators(update)

    def micro_loss(self, model: nn.Module, micro: MicroBatch, whole: Denominators) -> MicroLoss:
        """As the work; its tokens are kept."""
        part = self._work.micro_loss(model, micro, whole)
        found = () if part.tokens is None else _by_sample(micro, part.tokens)
        for place, columns in found:
            self._seen.setdefault(place, []).append(columns)
        return part

    def value_loss(self, critic: nn.Module, micro: MicroBatch, whole: Denominators) -> ValuePart:
        """As the work, which has a critic where this is called."""
        assert isinstance(self._work, ValueWork)
        return self._work.value_loss(critic, micro, whole)

    def filtered(self) -> Mapping[int, str]:
        """As the work."""
        return self._work.filtered()

    def metrics(self, step: int) -> dict[str, Any]:
        """As the work."""
        return self._work.metrics(step)

    def tokens(self, place: Place) -> dict[str, Tensor]:
        """What was seen of one sample's sampled tokens, over all epochs; empty where nothing was."""
        seen = self._seen.get(place, [])
        if not seen:
            return {}
        joined = {name: torch.cat([columns[name] for columns in seen]) for name in seen[0]}
        kept = joined["mask_C"] > 0
        return {name: column[kept] for name, column in joined.items()} if kept.any() else {}


def _by_sample(micro: MicroBatch, view: TokenView) -> Iterator[tuple[Place, dict[str, Tensor]]]:
    places = [(chunk.group, sample) for chunk in micro.chunks for sample in chunk.samples]
    columns = {name: getattr(view, name) for name in COLUMNS}
    parts = {name: c.split(view.lengths) for name, c in columns.items() if c is not None}
    for index, place in enumerate(places):
        yield place, {name: split[index].double().cpu() for name, split in parts.items()}


def describe_tokens(tokens: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Numbers of one sample: means over its tokens, maxima of ratio and of |actor - learner logprob|.

    None is what the algorithm does not have, or a sample that no loss has seen.
    """
    found: dict[str, float | None] = dict.fromkeys(
        ("ratio_max", "mismatch_max", "mismatch_kl", "entropy", "logprob")
    )
    if not tokens:
        return found
    logprobs = tokens["logprobs_C"]
    found["entropy"], found["logprob"] = float(tokens["entropy_C"].mean()), float(logprobs.mean())
    if "actor_logprobs_C" in tokens:
        actor = tokens["actor_logprobs_C"]
        found["ratio_max"] = float(ratio(logprobs, tokens["old_logprobs_C"]).max())
        found["mismatch_max"] = float((actor - logprobs).abs().max())
        found["mismatch_kl"] = float(kl_estimate(actor, logprobs, "K3").mean())
    return found
