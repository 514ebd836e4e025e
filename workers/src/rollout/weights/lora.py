"""Adapters as versions: who publishes them, and the names of their tensors. Never loads torch.

A run whose actors are vLLM servers publishes what it trains, the adapter, and the servers put it beside the
model's own weights. It is merged once only, at export, in float32 (``rollout.weights.merging``).
"""

from __future__ import annotations

from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.worker import WorkerConfig

PREFIX = "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"


def serves_adapter(config: WorkerConfig) -> bool:
    """As ``is_served_as_adapter``, of a run that has been resolved."""
    return is_served_as_adapter(config.spec)


def is_served_as_adapter(spec: RolloutRunSpec) -> bool:
    """Whether a run's versions are adapters: one is trained, over a base as it is, for engines that serve them.

    A base in four bits is restored for the learner alone, and an engine may have dense weights only:
    there the merged model is published.
    """
    lora = spec.model.lora
    served = spec.actors.chosen_engine.capabilities.adapters and spec.needs_actors
    return served and lora is not None and lora.quantization is None
