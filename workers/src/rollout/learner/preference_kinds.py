"""From a batch of rows to the work of each algorithm that learns from preferences; joined in ``kinds``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout.coordinator.messages import Batch
from rollout.learner.plan import PlanRules
from rollout.learner.preference_data import digest_pairs, render_pairs
from rollout.learner.preference_settings import PairSettings
from rollout.learner.preference_work import PairWork
from rollout.learner.settings import LearnerSettings
from rollout.learner.work import Work

if TYPE_CHECKING:
    from rollout.learner.parts import LearnerParts


def one_pass(settings: LearnerSettings, num_ranks: int) -> PlanRules:
    """One update over the whole batch, micro-batches bounded in tokens."""
    return PlanRules(tokens_max=settings.micro_batch_tokens, num_ranks=num_ranks)


def pair_work(parts: LearnerParts, batch: Batch) -> tuple[Work, str]:
    """DPO, IPO, ORPO, SimPO."""
    algorithm = parts.trainer.settings.algorithm
    assert isinstance(algorithm, PairSettings)
    assert parts.renderer is not None
    pairs = render_pairs(batch.rows, parts.renderer)
    work = PairWork(pairs, algorithm, parts.parallel.device, parts.reference)
    return work, digest_pairs(pairs)
