"""From a batch of rows to the work of each algorithm that learns from preferences; joined in ``objectives.registry``."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from rollout.learner.config.learner import LearnerSettings
from rollout.learner.config.preference import LabelSettings, PairSettings, RewardSettings
from rollout.learner.context import LearnerContext
from rollout.learner.model.scorer import load_scorer
from rollout.learner.objectives.contract import Work
from rollout.learner.objectives.plan import PlanRules
from rollout.learner.objectives.preference.data import (
    digest_labelled,
    digest_pairs,
    render_labelled,
    render_pairs,
)
from rollout.learner.objectives.preference.kto import KtoWork
from rollout.learner.objectives.preference.pairs import PairWork
from rollout.learner.objectives.preference.reward import RewardWork
from rollout.protocol.messages import Batch


def one_pass(settings: LearnerSettings, num_ranks: int) -> PlanRules:
    """One update over the whole batch, micro-batches bounded in tokens."""
    return PlanRules(tokens_max=settings.micro_batch_tokens, num_ranks=num_ranks)


def pair_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    """DPO, IPO, ORPO, SimPO."""
    algorithm = parts.trainer.settings.algorithm
    assert isinstance(algorithm, PairSettings)
    assert parts.renderer is not None
    pairs = render_pairs(batch.rows, parts.renderer)
    work = PairWork(pairs, algorithm, parts.parallel.device, parts.reference, parts.reference_cache)
    return work, digest_pairs(pairs)


def label_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    """KTO."""
    algorithm = parts.trainer.settings.algorithm
    assert isinstance(algorithm, LabelSettings)
    assert parts.renderer is not None
    assert parts.reference is not None
    rows = render_labelled(batch.rows, parts.renderer)
    work = KtoWork(rows, algorithm, parts.parallel, parts.reference, parts.reference_cache)
    return work, digest_labelled(rows)


def reward_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    """Reward models."""
    algorithm = parts.trainer.settings.algorithm
    assert isinstance(algorithm, RewardSettings)
    assert parts.renderer is not None
    pairs = render_pairs(batch.rows, parts.renderer)
    return RewardWork(pairs, algorithm, parts.parallel.device), digest_pairs(pairs)


def load_reward_model(path: Path, algorithm: RewardSettings) -> nn.Module:
    """The model with its scalar head, a new one where the folder holds a causal model."""
    return load_scorer(path, algorithm.seed)
