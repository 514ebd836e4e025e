"""What every algorithm is told that learns from sampled completions: the loss, and how often it is taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.surrogates.importance import Correction
from rollout.errors import SpecError
from rollout_api.v1alpha1.pods.roles import CAPABILITIES
from rollout_api.v1alpha1.training.train import Train


@dataclass(frozen=True, slots=True, kw_only=True)
class EndBar:
    """End tokens that actors do not sample among the first ``num_tokens`` of a reply (``minNewTokens``)."""

    num_tokens: int
    """First tokens of a reply that none of the others may be; at least 1."""
    token_ids: tuple[int, ...]
    """The end tokens that are barred there, at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSettings:
    """What all algorithms that learn from sampled completions share."""

    loss: GrpoSettings
    """The numbers of the policy's loss; its ``correction`` makes up for the logprobs that actors sampled with, where
    the old ones are the learner's own."""
    old_logprobs: Literal["Learner", "Actor"]
    """Whose logprobs the importance ratio is taken over."""
    temperature: float
    """Of training samples, > 0; logits are divided by it before logprobs are taken."""
    width: int
    """The completion limit in tokens, for ``FixedLength``."""
    epochs: int = 1
    """Passes over one step's batch, >= 1."""
    mini_batches: int = 1
    """Optimizer updates of one pass, >= 1."""
    end_bar: EndBar | None = None
    """Which end tokens were barred where; part of the policy that is learned; None: none."""

    @property
    def num_updates(self) -> int:
        """Optimizer updates of one step."""
        return self.epochs * self.mini_batches

    @property
    def computes_old_logprobs(self) -> bool:
        """Whether the ratio's denominator is the learner's own, from before the first of several updates."""
        return self.old_logprobs == "Learner" and self.num_updates > 1


def refuse_greedy(train: Train) -> None:
    """Raise SpecError for a temperature of 0."""
    if train.sampling.temperature == 0:
        raise SpecError(
            "spec.train.sampling.temperature: expected more than 0: greedy samples of a group are all"
            " the same, and their logprobs are not those of the policy; 1.0 is usual"
        )


def plan_end_bar(train: Train, stop_token_ids: tuple[int, ...]) -> EndBar | None:
    """What ``minNewTokens`` keeps the actors from sampling; None for nothing."""
    least, ends = train.sampling.min_new_tokens, train.sampling.end_token_ids(stop_token_ids)
    return EndBar(num_tokens=least, token_ids=ends) if least and ends else None


def plan_correction(train: Train, engine: str) -> Correction | None:
    """How the actors' logprobs are corrected for, None for not at all.

    Unset: per token, truncated at 2.0, when the engine is not the learner's own forward or trajectories
    may be stale, and never with the actors' logprobs as the old ones.
    """
    chosen = train.importance_sampling
    if chosen is not None:
        return CORRECTIONS[chosen.chosen](chosen.value)
    needed = not CAPABILITIES[engine].learner_forward or train.max_staleness > 0
    return Correction() if needed and train.old_logprobs == "Learner" else None


CORRECTIONS: Mapping[str, Callable[[Any], Correction | None]] = {
    "token_truncated": lambda said: Correction(high=said.cap),
    "sequence_truncated": lambda said: Correction(level="Sequence", high=said.cap),
    "token_masked": lambda said: Correction(low=said.low, high=said.high, masks=True),
    "sequence_masked": lambda said: Correction(
        level="Sequence", low=said.low, high=said.high, masks=True
    ),
    "none": lambda _: None,
}
"""By member of the API's ``importanceSampling``."""
