"""TRL's side of a duel: its own trainers, held at the start of every optimizer step."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from even_tokens import share
from jobs import LEARNING_RATE, STEPS_MAX, Job, read_job
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from turns import Turns

from rollout.weights.digest import digest_tensors


class Hold(TrainerCallback):
    """A turn lasts from one optimizer step's beginning to the next one's: logging and data included."""

    def __init__(self, turns: Turns, job: Job, **ready: Any) -> None:
        self.turns, self.job, self.facts = turns, job, ready
        self.trainer: Any = None
        self._tokens = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Report, and wait for the next turn."""
        self.turns.wait(**self.facts, **self._work(state))
        self.facts = {}

    def _work(self, state: Any) -> dict[str, Any]:
        if not state.log_history:
            return {}
        said = state.log_history[-1]
        total = said["num_tokens"]
        done, self._tokens = total - self._tokens, total
        samples = self.job.prompts_per_step * self.job.group_size
        known = {"tokens": done, "loss": said["loss"], "num_metrics": len(said)}
        return known | ({"samples": samples} if self.job.kind == "grpo" else {})


def common(job: Job, folder: str) -> dict[str, Any]:
    """What is equal for both algorithms: optimizer, clip, logging, no saving."""
    return {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": False,
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
    }


def grpo(job: Job, model: Any, tokenizer: Any, rows: Dataset, hold: Hold, folder: str) -> Any:
    """``GRPOTrainer`` with lengths forced."""
    config = GRPOConfig(
        **common(job, folder),
        per_device_train_batch_size=job.prompts_per_step * job.group_size,
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

    return GRPOTrainer(
        model,
        args=config,
        train_dataset=rows.remove_columns("completion"),
        processing_class=tokenizer,
        reward_funcs=even,
        callbacks=[hold],
    )


def sft(job: Job, model: Any, tokenizer: Any, rows: Dataset, hold: Hold, folder: str) -> Any:
    """``SFTTrainer``; packing by its default strategy, bfd."""
    config = SFTConfig(
        **common(job, folder),
        per_device_train_batch_size=job.trl_rows,
        max_length=job.max_length,
        packing=job.trl_packing,
        completion_only_loss=True,
    )
    return SFTTrainer(
        model, args=config, train_dataset=rows, processing_class=tokenizer, callbacks=[hold]
    )


def main(path: str) -> None:
    """Train until the parent ends this process."""
    turns = Turns()
    job, _ = read_job(path)
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    tokenizer.chat_template = None
    rows = [json.loads(line) for line in Path(job.data).read_text().splitlines()]
    text = rows[0]["prompt"] + rows[0]["completion"]
    first = tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] * (job.kind == "sft")
    weights = digest_tensors({name: p.detach() for name, p in model.named_parameters()})
    hold = Hold(turns, job, weights=weights, first_tokens=first)
    build = grpo if job.kind == "grpo" else sft
    trainer = build(job, model, tokenizer, Dataset.from_list(rows), hold, tempfile.mkdtemp())
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1])
