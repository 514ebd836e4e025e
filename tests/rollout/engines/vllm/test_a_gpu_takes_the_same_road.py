"""On a GPU a version goes the way it goes on a CPU: through the file, whole modules, hashed on the way."""

from dataclasses import replace

import pytest
import torch

from rollout.engines.vllm.engine import VllmEngine

from .conftest import Policies, settings_for

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: there is none here"),
]

CHANGED = frozenset({"model.layers.0.self_attn.k_proj.weight"})


async def test_a_file_is_loaded_whole_and_in_part(policies: Policies, tmp_path):
    settings = replace(settings_for(policies, tmp_path, exact=False), device="cuda")
    engine = VllmEngine(settings)
    try:
        for changed in (None, CHANGED):
            first = policies.first
            digest = await engine.load(first.version, first.weights, changed)
            assert digest == first.version.digest
    finally:
        await engine.stop()
