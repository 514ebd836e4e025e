"""What the learner needs to know of algorithms that learn from preferences, taken from the API: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollout.algorithms.preference.dpo import DpoSettings
from rollout.algorithms.preference.ipo import IpoSettings
from rollout.algorithms.preference.kto import KtoSettings
from rollout.algorithms.preference.orpo import OrpoSettings
from rollout.algorithms.preference.reward_model import RewardModelSettings
from rollout.algorithms.preference.simpo import SimpoSettings
from rollout_api.v1alpha1.training.preferences import Dpo, Ipo, Kto, Orpo, Rm, Simpo
from rollout_api.v1alpha1.training.train import Train
from rollout_api.worker import WorkerConfig

PairLoss = DpoSettings | IpoSettings | OrpoSettings | SimpoSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSettings:
    """A policy learns from pairs of answers."""

    loss: PairLoss
    """DPO, IPO, ORPO or SimPO, by its class."""
    max_length: int
    """In tokens, prompt included; pairs whose longer side exceeds it are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSettings:
    """KTO."""

    loss: KtoSettings
    """Its numbers."""
    max_length: int
    """In tokens, prompt included; longer rows are left out."""
    per_micro_batch: bool = False
    """Estimates the KL term over each micro-batch, as TRL does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """A reward model learns from pairs of answers."""

    loss: RewardModelSettings = field(default_factory=RewardModelSettings)
    """Its numbers."""
    max_length: int
    """In tokens, prompt included; pairs whose longer side exceeds it are left out."""
    seed: int = 0
    """The run's; draws a head that is not there yet."""


PreferenceSettings = PairSettings | LabelSettings | RewardSettings


def build_dpo(_: WorkerConfig, train: Train) -> PairSettings:
    """Settings from the manifest's ``dpo``."""
    dpo: Dpo = train.algorithm.value
    loss = DpoSettings(
        beta=dpo.beta,
        form=dpo.loss,
        label_smoothing=dpo.label_smoothing,
        sft_coefficient=dpo.sft_coefficient,
    )
    return PairSettings(loss=loss, max_length=dpo.max_length)


def build_ipo(_: WorkerConfig, train: Train) -> PairSettings:
    """Settings from the manifest's ``ipo``."""
    ipo: Ipo = train.algorithm.value
    loss = IpoSettings(beta=ipo.beta, aggregation=ipo.aggregation)
    return PairSettings(loss=loss, max_length=ipo.max_length)


def build_orpo(_: WorkerConfig, train: Train) -> PairSettings:
    """Settings from the manifest's ``orpo``."""
    orpo: Orpo = train.algorithm.value
    return PairSettings(loss=OrpoSettings(beta=orpo.beta), max_length=orpo.max_length)


def build_simpo(_: WorkerConfig, train: Train) -> PairSettings:
    """Settings from the manifest's ``simpo``."""
    simpo: Simpo = train.algorithm.value
    loss = SimpoSettings(beta=simpo.beta, gamma=simpo.gamma)
    return PairSettings(loss=loss, max_length=simpo.max_length)


def build_kto(_: WorkerConfig, train: Train) -> LabelSettings:
    """Settings from the manifest's ``kto``."""
    kto: Kto = train.algorithm.value
    loss = KtoSettings(
        beta=kto.beta,
        desirable_weight=kto.desirable_weight,
        undesirable_weight=kto.undesirable_weight,
    )
    return LabelSettings(
        loss=loss, max_length=kto.max_length, per_micro_batch=kto.kl_batch == "MicroBatch"
    )


def build_rm(config: WorkerConfig, train: Train) -> RewardSettings:
    """Settings from the manifest's ``rm``."""
    rm: Rm = train.algorithm.value
    loss = RewardModelSettings(centering_coefficient=rm.centering_coefficient)
    return RewardSettings(loss=loss, max_length=rm.max_length, seed=config.spec.seed)
