"""The engine of an actor: where a new one joins. What it can do stands on its settings in the API (``Capabilities``)."""

from __future__ import annotations

from importlib import import_module

from rollout.seams import Engine
from rollout_api.worker import WorkerConfig

ENGINES = {"embedded": "rollout.engines.embedded.build", "vllm": "rollout.engines.vllm.build"}
"""By its name in a manifest the module whose ``build`` takes the configuration, its settings and the actor's name.

Named, not imported: an actor loads the one engine that it has."""


POOLED = "rollout.engines.pooled.build"
"""The same of rows that are embedded or scored, for engines that can (``Capabilities.pooling``)."""


def build_engine(config: WorkerConfig, name: str) -> Engine:
    """The engine that ``spec.actors.engine`` names; ``name`` is the actor's, for its log."""
    chosen = config.spec.actors.chosen_engine
    infer = config.spec.infer
    if infer is not None and infer.task != "Generate":
        return import_module(POOLED).build(config, chosen.value, name)
    return import_module(ENGINES[chosen.name]).build(config, chosen.value, name)
