"""The vLLM engine, made from the run's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from rollout.engines.sizes import context_tokens, engine_folder, sequences_max
from rollout.engines.vllm.command import (
    AdapterSettings,
    SleepLevel,
    VllmSettings,
    plan_kv_cache_bytes,
)
from rollout.engines.vllm.engine import VllmEngine
from rollout.models.files import default_cache_dir
from rollout.models.shapes import read_shape
from rollout.seams import Engine
from rollout.weights.lora import serves_adapter
from rollout_api.v1alpha1.operations import Limits
from rollout_api.v1alpha1.pods.roles import Vllm
from rollout_api.worker import WorkerConfig

CPU_MEMORY_FRACTION = 0.2
"""vLLM refuses to start when this share of memory is not free, though its cache has a size of its own."""
START_SECONDS_MIN = 300.0
"""The least that a vLLM server is given to come up; importing it alone takes a minute on a busy machine."""


def build(config: WorkerConfig, vllm: Vllm, name: str) -> Engine:
    """The engine with its numbers from the manifest and the run."""
    model = Path(config.resolved.model_path)
    dtype = "bfloat16" if config.resolved.dtype == "BFloat16" else "float32"
    exact = config.spec.numerics.mode == "Exact"
    sequences = sequences_max(config)
    shape = read_shape(model)
    length = vllm.max_model_length or context_tokens(config, shape.context)
    cache_bytes = plan_kv_cache_bytes(
        shape.kv_elements_per_token, dtype, length=length, num_seqs=sequences
    )
    gpu = config.spec.actors.accelerator is not None
    return VllmEngine(
        VllmSettings(
            model_dir=model,
            log_path=Path(config.layout.run_dir) / "logs" / f"{name}-vllm.log",
            dtype=dtype,
            max_model_length=length,
            vocab_size=shape.vocab,
            exact=exact,
            device="cuda" if gpu else "cpu",
            engine_dir=engine_folder(),
            adapter=_plan_adapter(config),
            cache_dir=(engine_folder() or default_cache_dir()) / "vllm",
            threads=config.threads,
            max_num_seqs=sequences,
            tensor_parallel=vllm.tensor_parallel,
            kv_cache_bytes=0 if gpu else cache_bytes,
            memory_fraction=float(vllm.gpu_memory_utilization) if gpu else CPU_MEMORY_FRACTION,
            sleep_level=cast("SleepLevel", vllm.sleep_level),
            start_seconds_max=plan_start_seconds(config.spec.limits),
            extra_arguments=tuple(
                part
                for argument in vllm.extra_arguments
                for part in (f"--{argument.name}", argument.value)
                if part
            ),
        )
    )


def plan_start_seconds(limits: Limits) -> float:
    """How long a server may load its model: as long as anything may take without progress."""
    return max(START_SECONDS_MIN, float(limits.no_progress_seconds))


def _plan_adapter(config: WorkerConfig) -> AdapterSettings | None:
    """Room for every version that a sample may still be drawn from, the next one, and the one being loaded."""
    lora, train = config.spec.model.lora, config.spec.train
    if lora is None or not serves_adapter(config):
        return None
    slots = (0 if train is None else train.max_staleness) + 2
    return AdapterSettings(rank=lora.rank, alpha=lora.alpha, slots=slots)
