"""TRL's side of the race: ``GRPOTrainer`` with the main job's recipe, asked the held-out questions."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from turns import Turns

Rows = list[dict[str, str]]


def read_rows(path: str) -> Rows:
    """JSON lines."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def is_right(completion: str, answer: str) -> bool:
    """As ``exact-match`` has it."""
    return completion.strip() == answer.strip()


class HeldOut(TrainerCallback):
    """Greedy accuracy on all questions in one batch, every so many steps."""

    def __init__(self, turns: Turns, tokenizer: Any, rows: Rows, race: dict[str, Any]) -> None:
        self.turns, self.tokenizer, self.race = turns, tokenizer, race
        self.answers = [row["answer"] for row in rows]
        texts = [row["prompt"] for row in rows]
        self.inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Measure and tell."""
        if state.global_step % self.race["evaluate_every"] == 0:
            accuracy = self._accuracy(rest["model"])
            self.turns.say(step=state.global_step, accuracy=accuracy, at=time.time())

    @torch.inference_mode()
    def _accuracy(self, model: Any) -> float:
        model.eval()
        width = self.inputs["input_ids"].shape[1]
        found = model.generate(
            **self.inputs, do_sample=False, max_new_tokens=self.race["new_tokens"]
        )
        model.train()
        said = self.tokenizer.batch_decode(found[:, width:], skip_special_tokens=True)
        right = [is_right(*pair) for pair in zip(said, self.answers, strict=True)]
        return sum(right) / len(right)


def exact_match(completions: list[str], answer: list[str], **rest: Any) -> list[float]:
    """The reward."""
    return [float(is_right(*pair)) for pair in zip(completions, answer, strict=True)]


def config_of(race: dict[str, Any], folder: str) -> GRPOConfig:
    """The recipe in TRL's words."""
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        seed=race["seed"],
        per_device_train_batch_size=race["prompts_per_step"] * race["group_size"],
        num_generations=race["group_size"],
        max_completion_length=race["new_tokens"],
        temperature=race["temperature"],
        learning_rate=race["learning_rate"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=race["warmup_steps"],
        optim="adamw_torch_fused",
        adam_beta1=race["betas"][0],
        adam_beta2=race["betas"][1],
        adam_epsilon=race["epsilon"],
        weight_decay=race["weight_decay"],
        max_grad_norm=race["max_grad_norm"],
        beta=0.0,
        epsilon=race["clip_low"],
        epsilon_high=race["clip_high"],
        loss_type=race["loss_type"],
        scale_rewards=race["scale_rewards"],
        gradient_checkpointing=False,
        max_steps=race["steps"],
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def main(path: str) -> None:
    """Train until the parent has seen enough."""
    turns = Turns()
    race = json.loads(Path(path).read_text())
    model = AutoModelForCausalLM.from_pretrained(race["model"], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(race["model"])
    tokenizer.chat_template = None
    held_out = HeldOut(turns, tokenizer, read_rows(race["held_out_rows"]), race)
    GRPOTrainer(
        model,
        args=config_of(race, tempfile.mkdtemp()),
        train_dataset=Dataset.from_list(read_rows(race["train_rows"])),
        processing_class=tokenizer,
        reward_funcs=exact_match,
        callbacks=[held_out],
    ).train()


if __name__ == "__main__":
    main(sys.argv[1])
