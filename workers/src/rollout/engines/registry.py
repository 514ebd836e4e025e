"""The engine of an actor, made from the run's configuration. The only place that chooses one."""

from __future__ import annotations

from rollout.engines.embedded.build import build_embedded
from rollout.engines.vllm.build import build_vllm
from rollout.seams import Engine
from rollout_api.v1alpha1.roles import Embedded
from rollout_api.worker import WorkerConfig


def build_engine(config: WorkerConfig, name: str) -> Engine:
    """The engine that ``spec.actors.engine`` names; ``name`` is the actor's, for its log."""
    chosen = config.spec.actors.engine
    if chosen is not None and chosen.vllm is not None:
        return build_vllm(config, chosen.vllm, name)
    return build_embedded(config, Embedded() if chosen is None else chosen.embedded or Embedded())
