"""The embedded engine, made from the run's configuration."""

from __future__ import annotations

from pathlib import Path

import torch

from rollout.engines.batching import plan_batch_groups
from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.engines.embedded.model import CPU
from rollout.engines.sizes import group_size, prompts_per_step
from rollout.seams import Engine
from rollout_api.v1alpha1.pods.roles import Embedded
from rollout_api.worker import WorkerConfig


def build(config: WorkerConfig, embedded: Embedded, name: str) -> Engine:
    """The engine with its numbers from the manifest and the run."""
    del name
    groups = embedded.batch_groups or plan_batch_groups(
        group_size(config), prompts_per_step(config)
    )
    return EmbeddedEngine(
        Path(config.resolved.model_path),
        dtype=config.resolved.dtype,
        num_threads=config.threads,
        exact=config.spec.numerics.mode == "Exact",
        batch_groups=groups,
        device=find_device(),
    )


def find_device() -> torch.device:
    """The last GPU that this process sees, since learners begin with the first; the CPU where it sees none."""
    count = torch.cuda.device_count()
    return torch.device("cuda", count - 1) if count else CPU
