"""The engine of an actor, made from the run's configuration. The only place that chooses one."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rollout.errors import SpecError
from rollout.models.files import default_cache_dir
from rollout.models.shapes import read_shape
from rollout.seams import Engine
from rollout.weights.lora import serves_adapter
from rollout_api.v1alpha1.operations import Limits
from rollout_api.v1alpha1.roles import Embedded, Vllm
from rollout_api.worker import WorkerConfig

if TYPE_CHECKING:
    from rollout.engines.vllm.command import AdapterSettings

BATCH_SAMPLES = 256
"""Samples the embedded engine decodes together, when the manifest does not say."""
BLOCK_SAMPLES = 16
"""Rows that the embedded engine's matrix products take at once."""
VLLM_SEQUENCES = 64
"""Sequences a vLLM server decodes together in Fast, when the manifest does not say."""
CPU_MEMORY_FRACTION = 0.2
"""vLLM refuses to start when this share of memory is not free, though its cache has a size of its own."""
START_SECONDS_MIN = 300.0
"""The least that a vLLM server is given to come up; importing it alone takes a minute on a busy machine."""
ENGINE_DIR = "ROLLOUT_ENGINE_DIR"
TASKS_MIN, TASKS_MAX = 8, 256


def build_engine(config: WorkerConfig, name: str) -> Engine:
    """The engine that ``spec.actors.engine`` names; ``name`` is the actor's, for its log."""
    chosen = config.spec.actors.engine
    if chosen is not None and chosen.vllm is not None:
        return _build_vllm(config, chosen.vllm, name)
    return _build_embedded(config, Embedded() if chosen is None else chosen.embedded or Embedded())


def _build_embedded(config: WorkerConfig, embedded: Embedded) -> Engine:
    from rollout.engines.embedded.engine import EmbeddedEngine

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


def _build_vllm(config: WorkerConfig, vllm: Vllm, name: str) -> Engine:
    from rollout.engines.vllm.command import VllmSettings, plan_kv_cache_bytes
    from rollout.engines.vllm.engine import VllmEngine

    model = Path(config.resolved.model_path)
    dtype = "bfloat16" if config.resolved.dtype == "BFloat16" else "float32"
    exact = config.spec.numerics.mode == "Exact"
    sequences = 1 if exact else vllm.max_num_seqs or VLLM_SEQUENCES
    length = vllm.max_model_length or config.resolved.prompt_tokens_max + max_new_tokens(config)
    shape = read_shape(model)
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
    from rollout.engines.vllm.command import AdapterSettings

    lora, train = config.spec.model.lora, config.spec.train
    if lora is None or not serves_adapter(config):
        return None
    slots = (0 if train is None else train.max_staleness) + 2
    return AdapterSettings(rank=lora.rank, alpha=lora.alpha, slots=slots)


def engine_folder() -> Path | None:
    """The folder shared with a container that runs the server; None: the actor starts its own."""
    found = os.environ.get(ENGINE_DIR)
    return Path(found) if found else None


def group_size(config: WorkerConfig) -> int:
    """Samples per prompt of the run: the algorithm's, or the largest that an evaluation asks for."""
    train = config.spec.train
    if train is not None and train.algorithm.is_online:
        return train.algorithm.num_samples
    return max((one.samples_per_prompt for one in config.spec.evaluations), default=1)


def max_new_tokens(config: WorkerConfig) -> int:
    """Longest completion that a task of this run may ask for. Raises SpecError when nothing says."""
    train = config.spec.train
    wanted = [train.sampling.max_new_tokens if train and train.algorithm.is_online else None]
    wanted += [one.max_new_tokens for one in config.spec.evaluations]
    known = [tokens for tokens in wanted if tokens is not None]
    if not known:
        raise SpecError(
            "spec.actors.engine.vllm.maxModelLength: nothing in the manifest bounds completions; set it"
        )
    return max(known)


def prompts_per_step(config: WorkerConfig) -> int:
    """Groups of one step; 0 where nothing is sampled for training."""
    train = config.spec.train
    if train is None or not train.algorithm.is_online:
        return 0
    return train.algorithm.items_per_step


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


def plan_tasks_max(config: WorkerConfig) -> int:
    """Groups to claim at once: this actor's share of a step, within fixed bounds."""
    share = math.ceil(prompts_per_step(config) / max(1, config.spec.actors.replicas))
    return min(max(share, TASKS_MIN), TASKS_MAX)
