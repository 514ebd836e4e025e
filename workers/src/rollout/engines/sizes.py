"""What a run asks of its actors' engines, from the configuration: numbers that every engine plans with."""

from __future__ import annotations

import math
import os
from pathlib import Path

from rollout.engines.batching import BATCH_SAMPLES
from rollout.errors import SpecError
from rollout_api.checks.environment.evaluations import is_scored
from rollout_api.v1alpha1.inference.sampling import Sampling
from rollout_api.worker import WorkerConfig

ENGINE_DIR = "ROLLOUT_ENGINE_DIR"
TASKS_MIN, TASKS_MAX = 8, 256
VLLM_SEQUENCES = 64
"""Sequences a vLLM server decodes together in Fast, when the manifest does not say."""
TURNS_CONTEXT = 8192
"""Tokens of a conversation that a server has room for, where nobody says how long it gets."""


def engine_folder() -> Path | None:
    """The folder shared with a container that runs the server; None: the actor starts its own."""
    found = os.environ.get(ENGINE_DIR)
    return Path(found) if found else None


def group_size(config: WorkerConfig) -> int:
    """Samples per prompt of the run: the algorithm's, or the largest that an evaluation asks for."""
    train = config.spec.train
    if train is not None and train.algorithm.is_online:
        return train.algorithm.num_samples
    if config.spec.infer is not None:
        return config.spec.infer.samples_per_prompt
    return max((one.samples_per_prompt for one in config.spec.evaluations), default=1)


def max_new_tokens(config: WorkerConfig) -> int:
    """Longest completion that a task of this run may ask for. Raises SpecError when nothing says."""
    train, infer = config.spec.train, config.spec.infer
    if infer is not None:
        return infer.sampling.new_tokens_max
    wanted = [train.sampling.max_new_tokens if train and train.algorithm.is_online else None]
    unsaid = None if train is not None else Sampling().new_tokens_max
    wanted += [one.max_new_tokens or unsaid for one in config.spec.evaluations]
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


def sequences_max(config: WorkerConfig) -> int:
    """Sequences that one engine decodes together."""
    engine = config.spec.actors.chosen_engine
    if engine.vllm is None:
        groups = engine.embedded.batch_groups if engine.embedded is not None else None
        return BATCH_SAMPLES if groups is None else groups * group_size(config)
    exact = config.spec.numerics.mode == "Exact"
    return 1 if exact else engine.vllm.max_num_seqs or VLLM_SEQUENCES


def tasks_at_once(config: WorkerConfig) -> int:
    """Tasks whose samples fill one engine."""
    return max(1, sequences_max(config) // group_size(config))


def plan_tasks_max(config: WorkerConfig) -> int:
    """Groups to claim at once: this actor's share of a step, within fixed bounds."""
    share = math.ceil(prompts_per_step(config) / max(1, config.spec.actors.replicas))
    return min(max(share, TASKS_MIN), TASKS_MAX)


def context_tokens(config: WorkerConfig, context: int) -> int:
    """Tokens that one sample's prompt and completion may have together, of a model with so much ``context``.

    What a manifest's engine says (``maxModelLength``); else, of a server, what this run can need: of an environment of
    the user's, which may have turns, at least TURNS_CONTEXT where the model has it; where given answers are scored, the one
    token more that a server samples behind them.
    """
    engine = config.spec.actors.chosen_engine
    if not engine.capabilities.server:
        return context
    asked = getattr(engine.value, "max_model_length", None)
    if asked is not None:
        return min(asked, context)
    train = config.spec.train
    environment = None if train is None else train.environment
    turns = environment is not None and environment.builtin is None
    scored = any(is_scored(one) for one in config.spec.evaluations)
    needed = config.resolved.prompt_tokens_max + max_new_tokens(config) + int(scored)
    return min(context, max(needed, TURNS_CONTEXT) if turns else needed)
