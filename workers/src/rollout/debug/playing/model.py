"""A model as the policy: its folder, its own chat template, and the embedded engine in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch

from rollout.debug.playing.episode import Player
from rollout.engines.embedded.build import find_device
from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.models.resolve import resolve_model
from rollout.models.shapes import read_shape
from rollout.rendering import build_renderer
from rollout.types import SamplingParams, WeightVersion

MAX_TOKENS = 512
"""Of one reply, unless given."""


def open_model(
    uri: str, *, max_tokens: int | None = None, temperature: float = 1.0, seed: int = 0
) -> Player:
    """The model behind ``uri``, loaded. ``max_tokens`` None: MAX_TOKENS, or a quarter of its context.

    Raises SpecError for one that cannot be had, EngineError for weights that cannot be loaded.
    """
    found = resolve_model(uri)
    context = read_shape(found.path).context
    renderer = build_renderer(found.path)
    engine = EmbeddedEngine(
        found.path, num_threads=torch.get_num_threads(), exact=False, device=find_device()
    )
    version = WeightVersion(lineage=0, step=0, digest=found.digest, object="")
    asyncio.run(_load(engine, version, found.path))
    return Player(
        engine=engine,
        renderer=renderer,
        version=version,
        sampling=SamplingParams(
            max_new_tokens=max_tokens or min(MAX_TOKENS, context // 4),
            temperature=temperature,
            stop_token_ids=renderer.stop_token_ids,
        ),
        seed=seed,
        context_max=context,
    )


async def _load(engine: EmbeddedEngine, version: WeightVersion, folder: Path) -> None:
    try:
        await engine.load(version, folder)
    except BaseException:
        await engine.stop()
        raise
