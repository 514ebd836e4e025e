"""What the learner knows of one algorithm: a record stands beside its work, and joins in ``registry.OBJECTIVES``.

What others must know too (what a row holds, which models it brings) stands on its model in the API, as its traits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from rollout.learner.config.learner import AlgorithmSettings, LearnerSettings
from rollout.learner.config.ppo import CriticSettings
from rollout.learner.model.kl_control import KlControl
from rollout.learner.model.policy import load_model
from rollout.learner.objectives.contract import Work
from rollout.learner.objectives.plan import PlanRules
from rollout.protocol.messages import Batch
from rollout_api.v1alpha1.training.algorithms import TRAITS
from rollout_api.v1alpha1.training.train import Train
from rollout_api.v1alpha1.training.traits import Traits
from rollout_api.worker import WorkerConfig

if TYPE_CHECKING:
    from rollout.learner.context import LearnerContext


def one_pass(settings: LearnerSettings, num_ranks: int) -> PlanRules:
    """One update over the whole batch, micro-batches bounded in tokens."""
    return PlanRules(tokens_max=settings.micro_batch_tokens, num_ranks=num_ranks)


def several_passes(settings: LearnerSettings, num_ranks: int) -> PlanRules:
    """Epochs of mini-batches, as the settings of what is sampled say."""
    algorithm: Any = settings.algorithm
    return PlanRules(
        tokens_max=settings.micro_batch_tokens,
        num_ranks=num_ranks,
        epochs=algorithm.epochs,
        mini_batches=algorithm.mini_batches,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One algorithm in the learner; ``Any`` below is its settings."""

    name: str
    """Its name in a manifest's ``train.algorithm``."""
    settings: type
    """Its settings, or for a loss on pairs that loss's, by which a learner finds it."""
    build_settings: Callable[[WorkerConfig, Train], AlgorithmSettings]
    """From the manifest. Raises SpecError for what the learner cannot do."""
    build_work: Callable[[LearnerContext, Batch], tuple[Work, str]]
    """The work of a batch, and the digest of what it learns from."""
    plan_rules: Callable[[LearnerSettings, int], PlanRules] = one_pass
    """How a step is cut, for a number of ranks."""
    load: Callable[[Path, Any], nn.Module] = lambda path, _: load_model(path)
    """The float32 model that is trained, from a model folder."""
    critic: Callable[[Any], CriticSettings | None] = lambda _: None
    """How a critic beside the policy learns; None: there is none."""
    kl_control: Callable[[Any], KlControl | None] = lambda _: None
    """What moves the KL coefficient; None: nothing takes a KL whose coefficient is kept as state."""
    compares_rows: bool = False
    """Whether a micro-batch is what its rows are compared within, so that no model cuts it apart."""

    @property
    def traits(self) -> Traits:
        """What holds of the algorithm wherever it is met."""
        return TRAITS[self.name]

    def needs_reference(self, algorithm: Any) -> bool:
        """Whether a frozen copy of the starting model is loaded under these settings."""
        if self.traits.reference == "KlCoefficient":
            return algorithm.needs_reference
        return self.traits.reference == "Always"
