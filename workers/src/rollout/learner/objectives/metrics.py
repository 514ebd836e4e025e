"""A step's metrics as plain numbers: what a batch says by itself, and what its losses add up to.

Names are the ones that reports, trackers and status show. A share is of tokens unless it says
otherwise; a metric that does not apply is absent, never 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from msgspec import UnsetType

from rollout.algorithms.advantages.groups import GroupAdvantages
from rollout.types import Trajectory, TrajectoryGroup

TOKEN_MEANS = {
    "entropy": "entropy",
    "clipped_low": "clip_fraction_low",
    "clipped_high": "clip_fraction_high",
    "mismatch_kl": "mismatch_kl",
    "reference_kl": "reference_kl",
    "teacher_kl": "teacher_kl",
    "importance_truncated": "importance_truncated_share",
    "value_clipped": "value_clip_fraction",
}
"""Sum over tokens -> metric that is its mean."""

PAIR_MEANS = {
    "chosen_reward": "chosen_reward",
    "rejected_reward": "rejected_reward",
    "reward_margin": "reward_margin",
    "preferred": "preference_accuracy",
    "chosen_logprob": "chosen_logprob",
    "rejected_logprob": "rejected_logprob",
}
"""Sum over pairs -> metric that is its mean. Logprobs are sums over an answer."""

SIDE_MEANS = ("reward", "logprob")
"""Means over the good and over the bad answers of KTO: ``desirable_reward`` and so on."""

LOSS_PARTS = ("policy_loss", "kl_loss", "entropy_loss", "value_loss", "sft_loss", "preference_loss")


def describe_groups(
    groups: Sequence[TrajectoryGroup], found: GroupAdvantages, step: int
) -> dict[str, Any]:
    """Rewards (total and by source), advantage spread, lengths, staleness of one batch."""
    return {
        **describe_rewards(groups, step),
        "advantage_std": _std(_advantages(groups, found)),
        "advantage_abs_max": float(found.advantages_PG.abs().amax()),
        "zero_variance_share": float(found.zero_variance_P.double().mean()),
    }


def describe_rewards(groups: Sequence[TrajectoryGroup], step: int) -> dict[str, Any]:
    """Rewards (total and by source), lengths and staleness of one batch."""
    trajectories = [t for group in groups for t in group.trajectories]
    rewards = [t.reward for t in trajectories]
    lengths = [t.num_tokens for t in trajectories]
    prompts = sum(
        len(ids)
        for group in groups
        for ids in {row.prompt_ids for t in group.trajectories for row in t.rows}
    )
    return {
        "reward": fmean(rewards),
        "reward_min": min(rewards),
        "reward_max": max(rewards),
        "reward_std": _std(rewards),
        "reward_by_source": _by_source(trajectories),
        **_costs(trajectories),
        **_plugins(trajectories),
        "num_groups": len(groups),
        "num_sequences": len(trajectories),
        **_rows(trajectories),
        "num_excluded": sum(group.num_excluded for group in groups),
        "num_tokens": prompts + sum(lengths),
        "num_completion_tokens": sum(lengths),
        **describe_lengths(lengths),
        "length_truncated_share": fmean([t.ending == "length" for t in trajectories]),
        **_staleness(trajectories, step),
        **_retokenised(trajectories),
    }


def describe_lengths(lengths: Sequence[int]) -> dict[str, float]:
    """Mean, median, 95 % point (nearest rank) and maximum, in tokens."""
    ordered = sorted(lengths)
    return {
        "length_mean": fmean(ordered),
        "length_p50": float(_rank(ordered, 0.5)),
        "length_p95": float(_rank(ordered, 0.95)),
        "length_max": float(ordered[-1]),
    }


def describe_losses(
    sums: Mapping[str, float], maxima: Mapping[str, float], num_updates: int
) -> dict[str, float]:
    """Losses (mean over the updates), token means and maxima, from totals over all ranks.

    ``importance_effective_sample_share`` is ``(sum w)^2 / (n sum w^2)``, 1 when all weights are equal.
    """
    tokens = max(sums.get("tokens", 0.0), 1.0)
    parts = {name: sums[name] / num_updates for name in LOSS_PARTS if name in sums}
    means = {name: sums[key] / tokens for key, name in TOKEN_MEANS.items() if key in sums}
    found = {"loss": sum(parts.values()), **parts, **means, **_preferences(sums), **maxima}
    square = sums.get("importance_square")
    if square:
        found["importance_effective_sample_share"] = sums["importance"] ** 2 / (tokens * square)
    return found


def _preferences(sums: Mapping[str, float]) -> dict[str, float]:
    """Means over pairs, or over each side of labelled answers (absent where a batch has none)."""
    pairs = sums.get("pairs", 0.0)
    found = {name: sums[key] / pairs for key, name in PAIR_MEANS.items() if pairs and key in sums}
    for side in ("desirable", "undesirable"):
        if count := sums.get(side, 0.0):
            found |= {f"{side}_{name}": sums[f"{side}_{name}"] / count for name in SIDE_MEANS}
    if "desirable_reward" in found and "undesirable_reward" in found:
        found["reward_margin"] = found["desirable_reward"] - found["undesirable_reward"]
    return found


def _by_source(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    sources = sorted({source for t in trajectories for source in t.rewards})
    return {
        source: fmean([t.rewards[source] for t in trajectories if source in t.rewards])
        for source in sources
    }


def _costs(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What the rewards of these cost together, by source and kind; absent where nothing was asked that costs."""
    names = sorted({name for t in trajectories for name in t.costs})
    totals = {name: math.fsum(t.costs.get(name, 0.0) for t in trajectories) for name in names}
    return {"reward_costs": totals} if totals else {}


def _plugins(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """How many of these each version of each plugin played or scored, by path and digest; absent where versions do not change."""
    told = [t.plugins for t in trajectories if not isinstance(t.plugins, UnsetType)]
    counts: dict[str, dict[str, int]] = {}
    for path, digest in (item for one in told for item in one.items()):
        of = counts.setdefault(path, {})
        of[digest] = of.get(digest, 0) + 1
    return {"plugins": counts} if counts else {}


def _rows(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Rows of all samples; absent where each has one."""
    number = sum(len(t.rows) for t in trajectories)
    return {"num_rows": number} if number > len(trajectories) else {}


def _advantages(groups: Sequence[TrajectoryGroup], found: GroupAdvantages) -> list[float]:
    rows = found.advantages_PG.tolist()
    return [a for row, g in zip(rows, groups, strict=True) for a in row[: len(g.trajectories)]]


def _staleness(trajectories: Sequence[Trajectory], step: int) -> dict[str, Any]:
    """Age of each trajectory: version that consumes it (step - 1) minus version of its oldest token."""
    steps = [[span.step for row in t.rows for span in row.spans] for t in trajectories]
    ages = [step - 1 - min(of) for of in steps if of]
    if not ages:
        return {}
    histogram = {str(age): count for age, count in sorted(Counter(ages).items())}
    return {
        "staleness_mean": fmean(ages),
        "staleness_max": max(ages),
        "staleness_histogram": histogram,
    }


def _retokenised(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Share of samples whose text encodes to other tokens than were sampled, of those that were looked at."""
    seen = [t.retokenised for t in trajectories if t.retokenised is not None]
    return {"retokenised_share": fmean(seen)} if seen else {}


def _rank(ordered: Sequence[int], share: float) -> int:
    return ordered[math.ceil(share * len(ordered)) - 1]


def _std(values: Sequence[float]) -> float:
    mean = fmean(values)
    return fmean([(value - mean) ** 2 for value in values]) ** 0.5
