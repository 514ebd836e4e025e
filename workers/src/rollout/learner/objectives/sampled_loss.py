"""The loss of one micro-batch of sampled completions, whatever made its advantages.

Axes as in ``rollout.algorithms``: C scored tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.grpo import GrpoSettings, PolicyTokens, grpo_loss
from rollout.learner.config.sampled import SampledSettings
from rollout.learner.forward.packed_rows import TokenStats, token_logprobs
from rollout.learner.objectives.completions import Completions, RowPlace
from rollout.learner.objectives.contract import MicroLoss, TokenView
from rollout.learner.objectives.plan import MicroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What an algorithm knows of a micro-batch's tokens before the update, ``[C]`` each."""

    old_logprobs_C: Tensor
    advantages_C: Tensor
    reference_logprobs_C: Tensor | None = None


def compute_stats(
    model: nn.Module, completions: Completions, micro: MicroBatch, settings: SampledSettings
) -> TokenStats:
    """Logprobs, differentiable, and entropies under the model as it is now."""
    row = completions.row(micro)
    return token_logprobs(model, row, temperature=settings.temperature, entropy=True)


def choose_old_logprobs(
    completions: Completions,
    micro: MicroBatch,
    settings: SampledSettings,
    stored: Mapping[RowPlace, Tensor],
    current_C: Tensor,
) -> Tensor:
    """The ratio's denominator: the actors', those of before the step, or (one update) the current ones."""
    if settings.old_logprobs == "Actor":
        return completions.actor_logprobs(micro)
    return completions.stored(micro, stored) if settings.num_updates > 1 else current_C.detach()


def sampled_loss(
    completions: Completions,
    micro: MicroBatch,
    stats: TokenStats,
    terms: Terms,
    settings: GrpoSettings,
    whole: Denominators,
) -> MicroLoss:
    """The micro-batch's share of the policy's loss. The entropy has a gradient where it is a term."""
    assert stats.entropy_C is not None
    row = completions.row(micro)
    entropy_C = stats.entropy_C.detach()
    tokens = PolicyTokens(
        logprobs_C=stats.logprobs_C,
        old_logprobs_C=terms.old_logprobs_C,
        actor_logprobs_C=completions.actor_logprobs(micro),
        advantages_C=terms.advantages_C,
        mask_C=completions.masks(micro),
        sequence_C=completions.sequences(row),
        reference_logprobs_C=terms.reference_logprobs_C,
        entropy_C=stats.entropy_C if settings.entropy_coefficient > 0 else entropy_C,
        sampled_C=completions.sampled(micro),
    )
    found = grpo_loss(tokens, settings, whole)
    view = TokenView(
        lengths=row.lengths,
        logprobs_C=stats.logprobs_C.detach(),
        entropy_C=entropy_C,
        mask_C=tokens.mask_C,
        old_logprobs_C=tokens.old_logprobs_C,
        actor_logprobs_C=tokens.actor_logprobs_C,
    )
    return MicroLoss(loss=found.loss, sums=found.sums, maxima=found.maxima, tokens=view)
