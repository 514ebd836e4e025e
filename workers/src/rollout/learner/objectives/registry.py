"""The kinds of work a learner knows, each under the settings that ask for it: where a new kind joins.

A kind says how a batch becomes a ``Work``, how a step is cut, and what must be loaded for it. It joins
with one entry in ``KINDS``; the step, resume and the rest of the learner look nothing else up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from rollout.learner import hash_chain
from rollout.learner.config.distill import DistillSettings
from rollout.learner.config.learner import LearnerSettings
from rollout.learner.config.policy import PolicySettings
from rollout.learner.config.ppo import PpoSettings
from rollout.learner.config.preference import LabelSettings, PairSettings, RewardSettings
from rollout.learner.config.sft import SftSettings
from rollout.learner.context import LearnerContext
from rollout.learner.forward.packed_rows import is_packed
from rollout.learner.model.policy import load_model
from rollout.learner.objectives.contract import Work
from rollout.learner.objectives.distill import Desk, DistillWork
from rollout.learner.objectives.plan import PlanRules
from rollout.learner.objectives.policy import Kl, Place, PolicyWork
from rollout.learner.objectives.ppo import Helpers, PpoWork
from rollout.learner.objectives.preference.pairs import uses_reference
from rollout.learner.objectives.preference.registry import (
    label_work,
    load_reward_model,
    one_pass,
    pair_work,
    reward_work,
)
from rollout.learner.objectives.sft import SftWork, render_rows
from rollout.protocol.messages import Batch


def _never(algorithm: Any) -> bool:
    del algorithm
    return False


def _always(algorithm: Any) -> bool:
    del algorithm
    return True


def load_causal_model(path: Path, algorithm: Any) -> nn.Module:
    """The model as it is, whatever the algorithm."""
    del algorithm
    return load_model(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How one kind of algorithm settings (``Any`` below) is worked on.

    ``build_work`` gives the work of a batch and the digest of what it learns from. ``plan_rules`` takes
    the settings and the number of ranks. ``needs_reference`` says whether a frozen copy of the starting
    model is loaded, ``reads_rows`` whether batches are rows that need a renderer. ``load`` gives the
    float32 model that is trained, from a model folder.
    """

    build_work: Callable[[LearnerContext, Batch], tuple[Work, str]]
    plan_rules: Callable[[LearnerSettings, int], PlanRules]
    needs_reference: Callable[[Any], bool] = _never
    reads_rows: bool = False
    load: Callable[[Path, Any], nn.Module] = load_causal_model


def _policy_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    algorithm, parallel = parts.trainer.settings.algorithm, parts.parallel
    assert isinstance(algorithm, PolicySettings)
    place = Place(
        device=parallel.device,
        skips_silent=not parallel.sharded,
        gather=partial(parallel.gather, kind=Kl),
    )
    work = PolicyWork(batch.groups, algorithm, place, parts.reference)
    return work, hash_chain.digest_groups(batch.groups)


def _ppo_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    trainer, algorithm = parts.trainer, parts.trainer.settings.algorithm
    assert isinstance(algorithm, PpoSettings)
    assert trainer.critic is not None
    helpers = Helpers(
        critic=trainer.critic.model, reference=parts.reference, parallel=parts.parallel
    )
    coefficient = 0.0 if trainer.control is None else trainer.control.coefficient
    work = PpoWork(batch.groups, algorithm, helpers, coefficient)
    return work, hash_chain.digest_groups(batch.groups)


def _distill_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    algorithm = parts.trainer.settings.algorithm
    assert isinstance(algorithm, DistillSettings)
    assert parts.teacher is not None
    desk = Desk(teacher=parts.teacher, device=parts.parallel.device)
    return DistillWork(batch.groups, algorithm, desk), hash_chain.digest_groups(batch.groups)


def _policy_rules(settings: LearnerSettings, num_ranks: int) -> PlanRules:
    algorithm = settings.algorithm
    assert isinstance(algorithm, PolicySettings | PpoSettings | DistillSettings)
    return PlanRules(
        tokens_max=settings.micro_batch_tokens,
        num_ranks=num_ranks,
        epochs=algorithm.epochs,
        mini_batches=algorithm.mini_batches,
    )


def _sft_work(parts: LearnerContext, batch: Batch) -> tuple[Work, str]:
    algorithm = parts.trainer.settings.algorithm
    assert isinstance(algorithm, SftSettings)
    assert parts.renderer is not None
    sequences = render_rows(batch.rows, parts.renderer, algorithm)
    work = SftWork(sequences, parts.parallel.device, algorithm.label_smoothing)
    return work, hash_chain.digest_sequences(sequences)


def _sft_rules(settings: LearnerSettings, num_ranks: int) -> PlanRules:
    assert isinstance(settings.algorithm, SftSettings)
    tokens_max = settings.micro_batch_tokens if settings.algorithm.packing else 0
    return PlanRules(tokens_max=tokens_max, num_ranks=num_ranks)


KINDS: Mapping[type, Kind] = {
    PolicySettings: Kind(
        build_work=_policy_work,
        plan_rules=_policy_rules,
        needs_reference=lambda algorithm: algorithm.needs_reference,
    ),
    PpoSettings: Kind(
        build_work=_ppo_work,
        plan_rules=_policy_rules,
        needs_reference=lambda algorithm: algorithm.kl_coefficient > 0,
    ),
    DistillSettings: Kind(build_work=_distill_work, plan_rules=_policy_rules),
    SftSettings: Kind(build_work=_sft_work, plan_rules=_sft_rules, reads_rows=True),
    PairSettings: Kind(
        build_work=pair_work,
        plan_rules=one_pass,
        needs_reference=uses_reference,
        reads_rows=True,
    ),
    LabelSettings: Kind(
        build_work=label_work, plan_rules=one_pass, needs_reference=_always, reads_rows=True
    ),
    RewardSettings: Kind(
        build_work=reward_work, plan_rules=one_pass, reads_rows=True, load=load_reward_model
    ),
}


def kind_of(settings: LearnerSettings) -> Kind:
    """The kind that these settings ask for."""
    return KINDS[type(settings.algorithm)]


def cutting_rules(parts: LearnerContext) -> PlanRules:
    """How steps are cut: a model that shares nothing within a row has every item in a row of its own.

    Labelled answers stay together, since a micro-batch may be what they are compared within.
    """
    settings = parts.trainer.settings
    rules = kind_of(settings).plan_rules(settings, parts.parallel.world_size)
    decoder = parts.trainer.policy.model.get_decoder()  # pyrefly: ignore - transformers' models and ours have it
    if is_packed(decoder) or isinstance(settings.algorithm, LabelSettings):
        return rules
    return replace(rules, tokens_max=0)
