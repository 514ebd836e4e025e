"""From a step's rewards to its advantages: penalties and KL off, baseline, scale, whitening.

Pure: every rank knows the whole batch and computes the same numbers. All in float64.

A sample of several rows is one sample: of its group's statistics, of the penalty for length and of the KL
that it pays for before them. Its advantage is that of all its rows.

Axes: P groups, G samples of the widest one, C tokens of all rows in the batch's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rollout.algorithms.advantages.groups import GroupAdvantages, group_advantages, rewards_to_go
from rollout.algorithms.advantages.whitening import whiten
from rollout.learner.config.policy import PolicySettings
from rollout.learner.objectives.completions import RowPlace, Sample, rows_in, samples_in
from rollout.types import TrajectoryGroup

KlByRow = Mapping[RowPlace, Tensor]
"""KL per token of each row against the reference, 0 under its mask, float64 on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAdvantages:
    """``found`` by sample (of several values the mean over its sampled tokens).

    ``by_token``, by row, is None where all tokens of a sample have the sample's. ``metrics`` are of rewards.
    """

    found: GroupAdvantages
    by_token: Mapping[RowPlace, Tensor] | None
    metrics: Mapping[str, float]


def estimate_advantages(
    groups: Sequence[TrajectoryGroup], settings: PolicySettings, kl: KlByRow | None = None
) -> PolicyAdvantages:
    """The advantages of one step's batch. ``kl`` holds every row where ``reward_kl`` asks for it."""
    penalties = _penalties(groups, settings)
    rewards_PG, mask_PG = _spread_out(groups, penalties)
    priced_PG = _pay_kl(groups, rewards_PG, settings, kl)
    found = group_advantages(
        priced_PG,
        mask_PG,
        settings.advantage_scale,
        settings.advantage_epsilon,
        settings.advantage_baseline,
    )
    metrics = _metrics(groups, settings, penalties, kl)
    if settings.advantage_scale != "Whiten" and not _pays_by_token(settings):
        return PolicyAdvantages(found=found, by_token=None, metrics=metrics)
    by_token = _by_token(groups, found, settings, kl)
    means = _means(groups, found, by_token)
    return PolicyAdvantages(found=means, by_token=by_token, metrics=metrics)


def _penalties(groups: Sequence[TrajectoryGroup], settings: PolicySettings) -> dict[Sample, float]:
    if settings.overlong is None:
        return {}
    return {place: settings.overlong(t.num_sampled) for place, t in samples_in(groups)}


def _spread_out(
    groups: Sequence[TrajectoryGroup], penalties: Mapping[Sample, float]
) -> tuple[Tensor, Tensor]:
    widest = max(len(group.trajectories) for group in groups)
    rewards_PG = torch.zeros(len(groups), widest, dtype=torch.float64)
    mask_PG = torch.zeros(len(groups), widest, dtype=torch.float64)
    for place, trajectory in samples_in(groups):
        rewards_PG[place] = trajectory.reward - penalties.get(place, 0.0)
        mask_PG[place] = 1.0
    return rewards_PG, mask_PG


def _pays_by_token(settings: PolicySettings) -> bool:
    return settings.reward_kl is not None and settings.reward_kl.per_token


def _pay_kl(
    groups: Sequence[TrajectoryGroup],
    rewards_PG: Tensor,
    settings: PolicySettings,
    kl: KlByRow | None,
) -> Tensor:
    price = settings.reward_kl
    if price is None or price.per_token:
        return rewards_PG
    assert kl is not None
    paid_PG = rewards_PG.clone()
    for place, sample, _ in rows_in(groups):
        paid_PG[sample] -= price.coefficient * kl[place].sum()
    return paid_PG


def _by_token(
    groups: Sequence[TrajectoryGroup],
    found: GroupAdvantages,
    settings: PolicySettings,
    kl: KlByRow | None,
) -> dict[RowPlace, Tensor]:
    places, samples, rows = zip(*rows_in(groups), strict=True)
    lengths = torch.tensor([len(row.token_ids) for row in rows])
    mask_C = torch.tensor([m for row in rows for m in row.loss_mask], dtype=torch.float64)
    sequence_C = torch.arange(len(places)).repeat_interleave(lengths)
    values_B = torch.stack([found.advantages_PG[sample] for sample in samples])
    values_C = values_B[sequence_C]
    if _pays_by_token(settings):
        assert settings.reward_kl is not None
        assert kl is not None
        kl_C = torch.cat([kl[place] for place in places])
        values_C = values_C - settings.reward_kl.coefficient * rewards_to_go(kl_C, sequence_C)
    if settings.advantage_scale == "Whiten":
        values_C = whiten(values_C, mask_C)
    return dict(zip(places, values_C.split(lengths.tolist()), strict=True))


def _means(
    groups: Sequence[TrajectoryGroup],
    found: GroupAdvantages,
    by_token: Mapping[RowPlace, Tensor],
) -> GroupAdvantages:
    sums_PG = torch.zeros_like(found.advantages_PG)
    tokens_PG = torch.zeros_like(found.advantages_PG)
    for place, sample, row in rows_in(groups):
        mask = torch.tensor(row.loss_mask, dtype=torch.float64)
        sums_PG[sample] += (by_token[place] * mask).sum()
        tokens_PG[sample] += mask.sum()
    return replace(found, advantages_PG=sums_PG / tokens_PG.clamp(min=1))


def _metrics(
    groups: Sequence[TrajectoryGroup],
    settings: PolicySettings,
    penalties: Mapping[Sample, float],
    kl: KlByRow | None,
) -> dict[str, float]:
    metrics: dict[str, float] = {}
    if settings.overlong is not None:
        metrics["overlong_penalty"] = sum(penalties.values()) / len(penalties)
    if kl is not None:
        total = float(sum(kl_C.sum() for kl_C in kl.values()))
        metrics["kl_per_answer"] = total / sum(len(group.trajectories) for group in groups)
    return metrics
