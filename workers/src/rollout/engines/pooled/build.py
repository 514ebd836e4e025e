"""The engine of an inference run whose rows are embedded or scored, made from the run's configuration."""

from __future__ import annotations

from pathlib import Path

from rollout.engines.pooled.engine import PooledEngine
from rollout.errors import SpecError
from rollout.models.pooled import RUN_TASKS
from rollout.seams import Engine
from rollout_api.v1alpha1.pods.roles import Embedded
from rollout_api.worker import WorkerConfig


def build(config: WorkerConfig, embedded: Embedded, name: str) -> Engine:
    """The engine. Raises SpecError where the run has nothing to embed or to score."""
    del embedded, name
    task = "generate" if config.spec.infer is None else RUN_TASKS[config.spec.infer.task]
    if task == "generate":
        raise SpecError("spec.infer.task: expected Embed or Score")
    return PooledEngine(
        Path(config.resolved.model_path),
        task,
        num_threads=config.threads,
        exact=config.spec.numerics.mode == "Exact",
    )
