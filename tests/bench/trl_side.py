"""TRL's side of a duel: its own trainers, held at the start of every optimizer step."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from jobs import Job, read_job
from transformers import AutoTokenizer, TrainerCallback
from trl_trainers import Given, build_trainer, load_model
from turns import Turns

from rollout.weights.digest import digest_tensors


class Hold(TrainerCallback):
    """A turn lasts from one optimizer step's beginning to the next one's: logging and data included."""

    def __init__(self, turns: Turns, job: Job, **ready: Any) -> None:
        self.turns, self.job, self.facts = turns, job, ready
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
        known = {"tokens": done, "loss": said["loss"], "num_metrics": len(said)}
        return known | ({} if self.job.kind == "sft" else {"samples": self.job.samples_per_step})


def _first_tokens(job: Job, row: dict[str, Any], tokenizer: Any) -> list[int]:
    """The first row as it is trained on, of a pair the chosen answer; for sampling its prompt."""
    text = row["prompt"] + row["chosen" if job.learns_from_pairs else "completion"]
    return tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] * (job.kind != "grpo")


def main(path: str) -> None:
    """Train until the parent ends this process."""
    turns = Turns()
    job, _ = read_job(path)
    model = load_model(job)
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    tokenizer.chat_template = None
    rows = [json.loads(line) for line in Path(job.data).read_text().splitlines()]
    served = torch.bfloat16 if job.device == "cuda" else torch.float32
    weights = digest_tensors({name: p.detach().to(served) for name, p in model.named_parameters()})
    first = _first_tokens(job, rows[0], tokenizer)
    given = Given(
        job=job,
        model=model,
        tokenizer=tokenizer,
        rows=Dataset.from_list(rows),
        hold=Hold(turns, job, weights=weights, first_tokens=first),
        folder=tempfile.mkdtemp(),
    )
    build_trainer(given).train()


if __name__ == "__main__":
    main(sys.argv[1])
