"""The embedded engine, made from the run's configuration."""

from __future__ import annotations

import math
from pathlib import Path

from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.engines.sizes import BATCH_SAMPLES, group_size, prompts_per_step
from rollout.seams import Engine
from rollout_api.v1alpha1.roles import Embedded
from rollout_api.worker import WorkerConfig

BLOCK_SAMPLES = 16
"""Rows that the embedded engine's matrix products take at once."""


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
    )


def plan_batch_groups(samples: int, prompts: int) -> int:
    """Groups to decode together: a step's, or as many as give BATCH_SAMPLES, in whole blocks.

    Groups x samples is a multiple of BLOCK_SAMPLES, on which the exactness of shared batches rests.
    The number of actors does not enter, so that it can change no token.
    """
    wanted = max(1, BATCH_SAMPLES // samples)
    if prompts:
        wanted = min(wanted, prompts)
    block = BLOCK_SAMPLES // math.gcd(BLOCK_SAMPLES, samples)
    return math.ceil(wanted / block) * block
