"""What PPO must know of a whole batch before the first update: values, KL, advantages, returns.

Every rank scores its own samples; then all know all, so that each rank computes the same advantages
from the same numbers, in the same order, however the batch was cut.

Axes: C tokens of all samples in order, B samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from rollout.algorithms.advantages.whitening import Moments, measure_moments
from rollout.algorithms.aggregation import masked
from rollout.algorithms.ppo import SampledTokens, answer_kl, ppo_returns
from rollout.algorithms.value_loss import explained_variance
from rollout.learner.config.ppo import PpoSettings
from rollout.learner.objectives.completions import Completions, Sample
from rollout.types import Trajectory

TRUNCATED = "length"
"""The ending of an answer that its token limit cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """One sample under the models as they were before the step, per token, float32 on the CPU.

    ``end_value`` is the critic's value of the state after all tokens (0 where it was not asked for).
    """

    values: Tensor
    old_logprobs: Tensor
    reference_logprobs: Tensor | None
    end_value: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """By sample: what it was before, advantages before whitening and returns (float64, CPU).

    ``kl`` is the mean over all answers of their KL to the reference, in nats; 0 without a reference.
    ``overlong`` is the mean penalty for length, None when it is off.
    """

    before: Mapping[Sample, Before]
    advantages: Mapping[Sample, Tensor]
    returns: Mapping[Sample, Tensor]
    masks: Mapping[Sample, Tensor]
    kl: float
    overlong: float | None = None

    def moments(self, samples: Sequence[Sample]) -> Moments:
        """Of the advantages of some samples' sampled tokens, taken in the batch's order."""
        ordered = sorted(set(samples))
        return measure_moments(
            torch.cat([self.advantages[s] for s in ordered]),
            torch.cat([self.masks[s] for s in ordered]),
        )

    def describe(self) -> dict[str, Any]:
        """Metrics of the critic and its advantages, over the sampled tokens of the batch."""
        kept = torch.cat(list(self.masks.values())) > 0
        advantages = torch.cat(list(self.advantages.values()))[kept]
        returns = torch.cat(list(self.returns.values()))[kept]
        values = torch.cat([b.values.double() for b in self.before.values()])[kept]
        found = {
            "advantage_std": float(advantages.std(correction=0)),
            "advantage_abs_max": float(advantages.abs().amax()),
            "value_mean": float(values.mean()),
            "return_mean": float(returns.mean()),
            "return_std": float(returns.std(correction=0)),
        }
        if self.overlong is not None:
            found["overlong_penalty"] = self.overlong
        explained = explained_variance(values, returns)
        return found if explained is None else {**found, "explained_variance": explained}


def estimate(
    completions: Completions,
    before: Mapping[Sample, Before],
    settings: PpoSettings,
    kl_coefficient: float,
) -> Estimates:
    """Advantages and returns of a whole batch; ``before`` holds every sample of it."""
    samples = sorted(before)
    known = [before[sample] for sample in samples]
    trajectories = [completions.trajectory(sample) for sample in samples]
    lengths = [len(t.token_ids) for t in trajectories]
    masks = [torch.tensor(t.loss_mask, dtype=torch.float64) for t in trajectories]
    penalties = [_penalty(t, settings) for t in trajectories]
    rewards = [t.reward - taken for t, taken in zip(trajectories, penalties, strict=True)]
    tokens = SampledTokens(
        rewards_B=torch.tensor(rewards, dtype=torch.float64),
        values_C=torch.cat([b.values for b in known]),
        old_logprobs_C=torch.cat([b.old_logprobs for b in known]),
        mask_C=torch.cat(masks),
        sequence_C=torch.arange(len(samples)).repeat_interleave(torch.tensor(lengths)),
        reference_logprobs_C=_references(known),
        bootstrap_B=_bootstraps(known, [t.ending for t in trajectories], settings),
    )
    found = ppo_returns(tokens, settings.returns, kl_coefficient)
    return Estimates(
        before={s: before[s] for s in samples},
        advantages=_by_sample(samples, found.advantages_C, lengths),
        returns=_by_sample(samples, found.returns_C, lengths),
        masks=dict(zip(samples, masks, strict=True)),
        kl=float(answer_kl(tokens).mean()),
        overlong=None if settings.overlong is None else fmean(penalties),
    )


def mean_advantage(estimates: Estimates, sample: Sample) -> float:
    """Mean of a sample's advantages over its sampled tokens; 0 when it has none."""
    mask = estimates.masks[sample]
    total = masked(estimates.advantages[sample], mask).sum()
    return float(total / mask.sum().clamp(min=1))


def _penalty(trajectory: Trajectory, settings: PpoSettings) -> float:
    return 0.0 if settings.overlong is None else settings.overlong(sum(trajectory.loss_mask))


def _references(known: Sequence[Before]) -> Tensor | None:
    found = [b.reference_logprobs for b in known if b.reference_logprobs is not None]
    return torch.cat(found) if found else None


def _bootstraps(
    known: Sequence[Before], endings: Sequence[str], settings: PpoSettings
) -> Tensor | None:
    if not settings.bootstraps:
        return None
    values = [
        b.end_value if ending == TRUNCATED else 0.0
        for b, ending in zip(known, endings, strict=True)
    ]
    return torch.tensor(values, dtype=torch.float64)


def _by_sample(
    samples: Sequence[Sample], values_C: Tensor, lengths: Sequence[int]
) -> dict[Sample, Tensor]:
    return dict(zip(samples, values_C.split(list(lengths)), strict=True))
