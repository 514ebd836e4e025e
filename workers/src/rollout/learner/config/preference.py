"""What the learner needs to know of algorithms that learn from preferences, taken from the API: plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout.algorithms.preference.dpo import DpoSettings
from rollout.algorithms.preference.ipo import IpoSettings
from rollout.algorithms.preference.kto import KtoSettings
from rollout.algorithms.preference.orpo import OrpoSettings
from rollout.algorithms.preference.reward_model import RewardModelSettings
from rollout.algorithms.preference.simpo import SimpoSettings
from rollout_api.v1alpha1.preferences import Dpo, Ipo, Kto, Rm
from rollout_api.v1alpha1.train import Train
from rollout_api.worker import WorkerConfig

PairLoss = DpoSettings | IpoSettings | OrpoSettings | SimpoSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSettings:
    """A policy learns from pairs of answers. Pairs whose longer side exceeds ``max_length`` are left out."""

    loss: PairLoss
    max_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSettings:
    """KTO. ``per_micro_batch`` estimates the KL term over each micro-batch, as TRL does."""

    loss: KtoSettings
    max_length: int
    per_micro_batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """A reward model learns from pairs of answers; ``seed`` draws a head that is not there yet."""

    loss: RewardModelSettings = field(default_factory=RewardModelSettings)
    max_length: int
    seed: int = 0


PreferenceSettings = PairSettings | LabelSettings | RewardSettings


def build_preference(config: WorkerConfig, train: Train) -> PreferenceSettings:
    """Settings of the algorithm that ``train`` names; it is one of ``PREFERENCES``."""
    algorithm: Any = train.algorithm.value
    return _BUILDERS[train.algorithm.chosen](algorithm, config)


def _dpo(dpo: Dpo, _: WorkerConfig) -> PairSettings:
    loss = DpoSettings(
        beta=dpo.beta,
        form=dpo.loss,
        label_smoothing=dpo.label_smoothing,
        sft_coefficient=dpo.sft_coefficient,
    )
    return PairSettings(loss=loss, max_length=dpo.max_length)


def _ipo(ipo: Ipo, _: WorkerConfig) -> PairSettings:
    loss = IpoSettings(beta=ipo.beta, aggregation=ipo.aggregation)
    return PairSettings(loss=loss, max_length=ipo.max_length)


def _orpo(orpo: Any, _: WorkerConfig) -> PairSettings:
    return PairSettings(loss=OrpoSettings(beta=orpo.beta), max_length=orpo.max_length)


def _simpo(simpo: Any, _: WorkerConfig) -> PairSettings:
    loss = SimpoSettings(beta=simpo.beta, gamma=simpo.gamma)
    return PairSettings(loss=loss, max_length=simpo.max_length)


def _kto(kto: Kto, _: WorkerConfig) -> LabelSettings:
    loss = KtoSettings(
        beta=kto.beta,
        desirable_weight=kto.desirable_weight,
        undesirable_weight=kto.undesirable_weight,
    )
    return LabelSettings(
        loss=loss, max_length=kto.max_length, per_micro_batch=kto.kl_batch == "MicroBatch"
    )


def _rm(rm: Rm, config: WorkerConfig) -> RewardSettings:
    loss = RewardModelSettings(centering_coefficient=rm.centering_coefficient)
    return RewardSettings(loss=loss, max_length=rm.max_length, seed=config.spec.seed)


_BUILDERS: Mapping[str, Callable[[Any, WorkerConfig], PreferenceSettings]] = {
    "dpo": _dpo,
    "ipo": _ipo,
    "kto": _kto,
    "orpo": _orpo,
    "rm": _rm,
    "simpo": _simpo,
}
PREFERENCES = frozenset(_BUILDERS)
"""Members of the API's ``algorithm`` that learn from preferences."""
