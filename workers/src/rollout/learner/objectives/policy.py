"""A step of reinforcement learning without a critic: groups of sampled completions, the GRPO family.

Axes as in ``rollout.algorithms``: C scored tokens of a micro-batch, P groups, G samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.kl import kl_estimate
from rollout.learner import hash_chain
from rollout.learner.config.policy import PolicySettings, build_policy
from rollout.learner.context import LearnerContext
from rollout.learner.objectives.completions import Completions, RowPlace, rows_in
from rollout.learner.objectives.contract import MicroLoss, Work
from rollout.learner.objectives.metrics import describe_groups
from rollout.learner.objectives.objective import Objective, several_passes
from rollout.learner.objectives.plan import GroupShape, MicroBatch, Update
from rollout.learner.objectives.policy_advantages import (
    PolicyAdvantages,
    estimate_advantages,
)
from rollout.learner.objectives.sampled_loss import (
    Terms,
    choose_old_logprobs,
    compute_stats,
    sampled_loss,
)
from rollout.protocol.messages import Batch
from rollout.types import TrajectoryGroup

Kl = dict[RowPlace, Tensor]

SILENT_SHARE_MIN = 0.25
"""Share of tokens without a gradient from which a forward of their own saves more than it costs."""


def _alone(value: Kl) -> list[Kl]:
    return [value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and how this rank computes. ``skips_silent``: groups without signal need no backward.

    ``gather`` gives every rank's value to all. ``dtype`` is of recorded numbers on the device.
    """

    device: torch.device
    skips_silent: bool = True
    gather: Callable[[Kl], list[Kl]] = _alone
    dtype: torch.dtype = torch.float32


class PolicyWork:
    """The groups of one step; keeps advantages, old and reference logprobs between updates."""

    def __init__(
        self,
        groups: Sequence[TrajectoryGroup],
        settings: PolicySettings,
        place: Place,
        reference: nn.Module | None,
    ) -> None:
        self._completions = Completions(groups, place.device, settings, dtype=place.dtype)
        self._settings = settings
        self._place = place
        self._reference = reference
        self._advantages: PolicyAdvantages | None = None
        if settings.reward_kl is None:
            self._advantages = estimate_advantages(groups, settings)
        self._old: dict[RowPlace, Tensor] = {}
        self._references: dict[RowPlace, Tensor] = {}

    @property
    def advantages(self) -> list[list[float]]:
        """By group and row: its sample's (of several values the mean over tokens); after ``prepare``."""
        groups, known = self._completions.groups, self._known.found.advantages_PG
        found: list[list[float]] = [[] for _ in groups]
        for place, sample, _ in rows_in(groups):
            found[place[0]].append(float(known[sample]))
        return found

    @property
    def _known(self) -> PolicyAdvantages:
        assert self._advantages is not None, "prepare comes first"
        return self._advantages

    def shapes(self) -> Sequence[GroupShape]:
        """Lengths; groups that can have no gradient are marked, where enough of the batch is so."""
        shapes = self._completions.shapes()
        silent = self._silent([sum(shape.completion_tokens) for shape in shapes])
        return [
            replace(shape, learns=not quiet) for shape, quiet in zip(shapes, silent, strict=True)
        ]

    def _silent(self, tokens: Sequence[int]) -> list[bool]:
        """Zero-variance groups, unless another term of the loss reaches them or a pass is not worth it."""
        if not (self._place.skips_silent and self._settings.skips_silent):
            return [False] * len(tokens)
        silent: list[bool] = self._known.found.zero_variance_P.tolist()
        share = sum(n for n, quiet in zip(tokens, silent, strict=True) if quiet) / sum(tokens)
        return silent if share >= SILENT_SHARE_MIN else [False] * len(silent)

    def prepare(self, model: nn.Module, passes: Sequence[Sequence[MicroBatch]]) -> None:
        """Old and reference logprobs, without gradient; advantages where they hold a KL."""
        settings, priced = self._settings, self._settings.reward_kl is not None
        if settings.computes_old_logprobs or (priced and settings.old_logprobs == "Learner"):
            self._old = self._completions.score(model, passes, settings)
        if self._reference is not None:
            self._references = self._completions.score(
                self._reference, passes, settings, routed=False
            )
        if priced:
            groups = self._completions.groups
            self._advantages = estimate_advantages(groups, settings, self._whole_kl())

    def denominators(self, update: Update) -> Denominators:
        """Tokens and sequences of the mini-batch that count in the loss."""
        return self._completions.denominators(update)

    def micro_loss(self, model: nn.Module, micro: MicroBatch, whole: Denominators) -> MicroLoss:
        """The loss on one row."""
        known, settings = self._completions, self._settings
        stats = compute_stats(model, known, micro, settings)
        terms = Terms(
            old_logprobs_C=choose_old_logprobs(known, micro, settings, self._old, stats.logprobs_C),
            advantages_C=self._advantages_of(micro),
            reference_logprobs_C=known.stored(micro, self._references)
            if self._references
            else None,
        )
        return sampled_loss(known, micro, stats, terms, settings.loss, whole)

    def filtered(self) -> Mapping[int, str]:
        """None: zero-variance groups are consumed (dynamic sampling is the coordinator's)."""
        return {}

    def metrics(self, step: int) -> dict[str, Any]:
        """Rewards, advantages, lengths and staleness of the batch."""
        known = self._known
        found = describe_groups(self._completions.groups, known.found, step)
        if self._settings.advantage_baseline == "None":
            del found["zero_variance_share"]  # equal rewards of a group say nothing here
        return {**found, **known.metrics}

    def _whole_kl(self) -> Kl:
        """The KL of every row's tokens under the policy before the step, from all ranks."""
        price = self._settings.reward_kl
        assert price is not None
        own: Kl = {}
        for place, reference in self._references.items():
            row = self._completions.tokens(place)
            old = self._old.get(place)
            if old is None:
                old = torch.tensor(row.actor_logprobs, dtype=torch.float64)
            mask = torch.tensor(row.loss_mask)
            kl_C = kl_estimate(old.double().cpu(), reference.double().cpu(), price.estimator)
            own[place] = torch.where(mask > 0, kl_C, 0.0)
        found = {place: kl_C for kl in self._place.gather(own) for place, kl_C in kl.items()}
        return {place: found[place] for place, _, _ in rows_in(self._completions.groups)}

    def _advantages_of(self, micro: MicroBatch) -> Tensor:
        known = self._known
        if known.by_token is not None:
            return self._completions.stored(micro, known.by_token)
        by_sample = known.found.advantages_PG
        return self._completions.per_sample(micro, lambda sample: float(by_sample[sample]))


def _build_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    algorithm, parallel = parts.trainer.settings.algorithm, parts.parallel
    assert isinstance(algorithm, PolicySettings)
    place = Place(
        device=parallel.device,
        skips_silent=not parallel.sharded,
        gather=partial(parallel.gather, kind=Kl),
    )
    work = PolicyWork(batch.groups, algorithm, place, parts.reference)
    return work, hash_chain.digest_groups(batch.groups)


GRPO = Objective(
    name="grpo",
    settings=PolicySettings,
    build_settings=build_policy,
    build_work=_build_work,
    plan_rules=several_passes,
)
