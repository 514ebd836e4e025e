"""Tiny random models, written to disk the way a learner publishes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.types import GenerateRequest, SamplingParams, WeightVersion
from rollout.weights.digest import digest_tensors, save_weights

CONFIGS = {
    "qwen2": Qwen2Config,
    "llama": LlamaConfig,
    "qwen3": Qwen3Config,
    "mistral": MistralConfig,
    "gemma": GemmaConfig,
    "gemma2": Gemma2Config,
}
VOCAB = 61


def build_config(kind: str, **overrides: object) -> PretrainedConfig:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": kind in {"qwen2", "gemma"},
        "use_cache": True,
    }
    if kind == "mistral":  # not known to the compact decoder
        sizes["sliding_window"] = None
    return CONFIGS[kind](**(sizes | overrides))


def build_model(kind: str, seed: int = 0, **overrides: object) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(build_config(kind, **overrides)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5).sub_(float(kind == "gemma"))  # Gemma scales by 1 + w
            elif name.endswith("bias") or "embed" in name or "lm_head" in name:
                parameter.normal_(std=0.1)
            else:
                parameter.normal_(std=0.7 * parameter.shape[-1] ** -0.5)
    return model


def published(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    tied = model.config.tie_word_embeddings
    return {k: v for k, v in model.state_dict().items() if not (tied and k == "lm_head.weight")}


def publish(model: torch.nn.Module, folder: Path, step: int = 1) -> tuple[WeightVersion, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    path = folder / "model.safetensors"
    save_weights(published(model), path)
    digest = digest_tensors(published(model))
    return WeightVersion(lineage=0, step=step, digest=digest, object=digest), path


def draw_ids(seed: int, length: int) -> tuple[int, ...]:
    source = random.Random(seed)
    return tuple(source.randrange(VOCAB) for _ in range(length))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def start_engine(tmp_path: Path) -> Callable:
    """Publish a model and bring up an engine that has loaded it."""

    async def start(model: torch.nn.Module, **options: object) -> EmbeddedEngine:
        version, weights = publish(model, tmp_path / "model")
        engine = EmbeddedEngine(tmp_path / "model", **options)
        await engine.start()
        assert await engine.load(version, weights) == version.digest
        return engine

    return start


@pytest.fixture
def tiny_model() -> Callable:
    return build_model


@pytest.fixture
def tiny_config() -> Callable:
    return build_config


@pytest.fixture(scope="session")
def build_once() -> Callable:
    return build_model


@pytest.fixture(scope="session")
def ids_once() -> Callable:
    return draw_ids


@pytest.fixture
def publish_model() -> Callable:
    return publish


@pytest.fixture
def ids() -> Callable:
    return draw_ids


@pytest.fixture
def request_of() -> Callable:
    """A group of ``size`` samples for a prompt of ``length`` random tokens."""

    def build(length: int, size: int = 4, seed: int = 0, **sampling: object) -> GenerateRequest:
        options = {"max_new_tokens": 12} | sampling
        return GenerateRequest(
            prompt_ids=draw_ids(seed, length),
            seeds=tuple(1000 * seed + i for i in range(size)),
            sampling=SamplingParams(**options),
        )

    return build
