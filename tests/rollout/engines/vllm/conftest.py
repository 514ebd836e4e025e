"""One tiny policy in three versions, and real vLLM servers for it: a start costs most of a minute."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollout.engines.vllm.command import VllmSettings
from rollout.engines.vllm.engine import VllmEngine
from rollout.errors import EngineError
from rollout.models.files import default_cache_dir
from rollout.models.resolve import resolve_model
from rollout.types import GenerateRequest, SamplingParams, WeightVersion

HEAD_SCALE, LAYER_SCALE = 5.0, 40.0
"""The random model is nearly uniform and its layers hardly matter; scaled, it chooses, and by its context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One version as the learner has it, and as published."""

    model: Any
    version: WeightVersion
    weights: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """``first``, ``first`` after one small optimizer step, and one that shares nothing with them."""

    model_dir: Path
    first: Policy
    stepped: Policy
    other: Policy


@pytest.fixture(scope="session")
def policies(tmp_path_factory) -> Policies:
    """With the output head tied to the embeddings: the case in which a reload forgets a tensor."""
    return build_policies(tmp_path_factory.mktemp("policies"), tied=1)


@pytest.fixture(scope="session")
def untied_policies(tmp_path_factory) -> Policies:
    return build_policies(tmp_path_factory.mktemp("untied"), tied=0)


def build_policies(folder: Path, *, tied: int) -> Policies:
    import torch

    uri = f"rollout://tiny-qwen2?tied={tied}"
    model_dir = resolve_model(uri, cache_dir=folder).path
    other_dir = resolve_model(f"{uri}&seed=1", cache_dir=folder).path

    stepped = load_sharp(model_dir)
    optimizer = torch.optim.AdamW(stepped.parameters(), lr=1e-5)
    ids = torch.arange(64)[None] % 200
    stepped(ids, labels=ids).loss.backward()
    optimizer.step()
    return Policies(
        model_dir=model_dir,
        first=publish(load_sharp(model_dir), 0, folder),
        stepped=publish(stepped, 1, folder),
        other=publish(load_sharp(other_dir), 2, folder),
    )


def load_sharp(model_dir: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(HEAD_SCALE)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(LAYER_SCALE)
            layer.mlp.down_proj.weight.mul_(LAYER_SCALE)
    return model


def publish(model: Any, step: int, folder: Path) -> Policy:
    from rollout.weights.digest import digest_tensors, save_weights

    tied = model.config.tie_word_embeddings
    tensors = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
    weights = folder / f"version-{step}"
    save_weights(tensors, weights)
    version = WeightVersion(lineage=0, step=step, digest=digest_tensors(tensors), object="blake3:")
    return Policy(model=model, version=version, weights=weights)


def settings_for(policies: Policies, folder: Path, *, exact: bool) -> VllmSettings:
    return VllmSettings(
        model_dir=policies.model_dir,
        log_path=folder / "vllm.log",
        dtype="float32",
        max_model_length=512,
        vocab_size=policies.first.model.config.vocab_size,
        exact=exact,
        max_num_seqs=8,
        kv_cache_bytes=128 * 2**20,
        start_seconds_max=900.0,
        cache_dir=default_cache_dir() / "vllm",
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def started_engine(policies, tmp_path_factory) -> AsyncIterator[tuple[VllmEngine, str]]:
    """The server of every test that is not Exact, and what it said when asked before its first version.

    Asked here: whichever test comes first loads one.
    """
    engine = VllmEngine(settings_for(policies, tmp_path_factory.mktemp("fast"), exact=False))
    await engine.start()
    with pytest.raises(EngineError) as refused:
        await engine.generate([ask(4)])
    yield engine, str(refused.value)
    await engine.stop()


@pytest.fixture(scope="session")
def fast_engine(started_engine) -> VllmEngine:
    return started_engine[0]


@pytest.fixture(scope="session")
def unloaded_refusal(started_engine) -> str:
    return started_engine[1]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def exact_engine(untied_policies, tmp_path_factory) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(settings_for(untied_policies, tmp_path_factory.mktemp("exact"), exact=True))
    await engine.start()
    yield engine
    await engine.stop()


def ask(prompt_length: int, num_samples: int = 4, **sampling: Any) -> GenerateRequest:
    """A group whose prompt is ``prompt_length`` tokens."""
    return GenerateRequest(
        prompt_ids=tuple((7 * i * i + 3 * i) % 250 for i in range(prompt_length)),
        seeds=tuple(range(1000, 1000 + num_samples)),
        sampling=SamplingParams(**({"max_new_tokens": 24} | sampling)),
    )
