"""TRL's trainers for each kind of job, with what is equal on both sides and TRL's defaults for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from even_tokens import share
from jobs import LEARNING_RATE, STEPS_MAX, Job
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    TrainerCallback,
)
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What every trainer is made of; ``folder`` takes whatever it writes."""

    job: Job
    model: Any
    tokenizer: Any
    rows: Dataset
    hold: TrainerCallback
    folder: str

    def build(self, trainer: Any, config: Any, **more: Any) -> Any:
        """The trainer from its own configuration."""
        rest = {"train_dataset": self.rows, **more}
        return trainer(
            self.model,
            args=config,
            processing_class=self.tokenizer,
            callbacks=[self.hold],
            **rest,
        )


def load_model(job: Job) -> Any:
    """The job's model in float32, with a scalar head for reward models."""
    if job.kind == "rm":
        return AutoModelForSequenceClassification.from_pretrained(
            job.model, num_labels=1, dtype=torch.float32
        )
    return AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32)


def build_trainer(given: Given) -> Any:
    """The trainer for the job's kind."""
    return _TRAINERS[given.job.kind](given)


def _common(given: Given) -> dict[str, Any]:
    """Optimizer, clip, logging, no saving."""
    job = given.job
    return {
        "output_dir": given.folder,
        "use_cpu": job.device == "cpu",
        "bf16": job.device == "cuda",
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch_fused",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "gradient_checkpointing": job.gradient_checkpointing,
        "gradient_accumulation_steps": job.trl_accumulate,
        "max_steps": STEPS_MAX,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        **({"train_sampling_strategy": "sequential"} if job.ordered else {}),
    }


def _of_rows(given: Given) -> dict[str, Any]:
    """As above, for algorithms without sampling."""
    job = given.job
    return {
        **_common(given),
        "per_device_train_batch_size": job.trl_rows,
        "max_length": job.max_length,
    }


def _grpo(given: Given) -> Any:
    """Lengths are forced."""
    job = given.job
    config = GRPOConfig(
        **_common(given),
        per_device_train_batch_size=job.samples_per_step,
        num_generations=job.group_size,
        max_completion_length=job.new_tokens,
        generation_kwargs={"min_new_tokens": job.new_tokens},
        temperature=1.0,
        beta=0.0,
        epsilon=0.2,
        loss_type="dapo",
    )

    def even(completion_ids: list[list[int]], **rest: Any) -> list[float]:
        return [share(ids) for ids in completion_ids]

    rows = given.rows.remove_columns("completion")
    return given.build(GRPOTrainer, config, reward_funcs=even, train_dataset=rows)


def _sft(given: Given) -> Any:
    """Packing is by its default strategy, bfd."""
    packing = {"packing": given.job.trl_packing, "completion_only_loss": True}
    return given.build(SFTTrainer, SFTConfig(**_of_rows(given), **packing))


def _dpo(given: Given) -> Any:
    """The reference in memory beside the policy, as ours; TRL would load it again by its name."""
    config = DPOConfig(**_of_rows(given))
    return given.build(DPOTrainer, config, ref_model=load_model(given.job))


def _kto(given: Given) -> Any:
    config = KTOConfig(**_of_rows(given))
    return given.build(KTOTrainer, config, ref_model=load_model(given.job))


def _reward(given: Given) -> Any:
    return given.build(RewardTrainer, RewardConfig(**_of_rows(given)))


_TRAINERS: Mapping[str, Callable[[Given], Any]] = {
    "grpo": _grpo,
    "sft": _sft,
    "dpo": _dpo,
    "kto": _kto,
    "rm": _reward,
}
