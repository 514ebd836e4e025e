"""What both sides of a training duel are given: one model, one file of rows, one set of numbers."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rollout.models.resolve import resolve_model

HERE = Path(__file__).parent
GSM8K = HERE.parents[1] / "manifests" / "samples" / "data" / "gsm8k" / "train.jsonl"
MODEL = "rollout://tiny-qwen2?hidden=512&layers=8"
"""25.4 million parameters, one token per byte."""
LEARNING_RATE = 1e-5
STEPS_MAX = 10_000
ROWS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One duel. ``model`` is a folder, ``data`` JSON lines of ``prompt`` and what is learned from.

    ``mode`` is ours alone; ``gradient_checkpointing`` and what begins with ``trl`` are TRL's. Ours
    always packs (the product's default); ``batch_size`` counts our rows. ``ordered``: both take the
    rows as they stand in the file, so that their losses can be compared step by step. On ``cuda`` both
    compute in bfloat16 beside float32 masters: TRL by autocast, its default there.
    """

    kind: Literal["grpo", "sft", "dpo", "kto", "rm"]
    model: str
    data: str
    prompts_per_step: int = 2
    group_size: int = 8
    new_tokens: int = 128
    batch_size: int = 8
    max_length: int = 1024
    mode: Literal["Exact", "Fast"] = "Exact"
    gradient_checkpointing: bool = False
    trl_packing: bool = False
    trl_rows: int = 8
    trl_accumulate: int = 1
    ordered: bool = False
    device: Literal["cpu", "cuda"] = "cpu"

    @property
    def learns_from_pairs(self) -> bool:
        """Whether a row holds ``chosen`` and ``rejected`` instead of a ``completion``."""
        return self.kind in ("dpo", "rm")

    @property
    def samples_per_step(self) -> int:
        """Completions, rows or pairs of one step."""
        if self.kind == "grpo":
            return self.prompts_per_step * self.group_size
        return self.batch_size

    def write(self, folder: Path, name: str) -> str:
        """Write it down, our manifest beside it; returns the path for both sides."""
        manifest = folder / f"{name}.yaml"
        manifest.write_text(json.dumps(manifest_of(self)))
        path = folder / f"{name}.json"
        path.write_text(json.dumps({**asdict(self), "manifest": str(manifest)}))
        return str(path)


def read_job(path: str) -> tuple[Job, Path]:
    """A job as written, and its manifest."""
    found = json.loads(Path(path).read_text())
    manifest = Path(found.pop("manifest"))
    return Job(**found), manifest


def manifest_of(job: Job, *, steps: int = STEPS_MAX) -> dict[str, Any]:
    """The run that a user would write for this job; what it does not say is the product's default."""
    answer = {} if job.learns_from_pairs else {"answerField": "completion"}
    train = {
        "data": {"jsonl": {"uri": job.data, **answer}, "shuffle": not job.ordered},
        "optimizer": {"adamw": {"learningRate": str(LEARNING_RATE)}},
        "maxSteps": steps,
        **(_grpo(job) if job.kind == "grpo" else _offline(job)),
    }
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "bench"},
        "spec": {
            "numerics": {"mode": job.mode},
            "model": {"uri": f"file://{job.model}", "chatTemplate": "plain", **_dtype(job)},
            "train": train,
        },
    }


def _dtype(job: Job) -> dict[str, str]:
    return {"dtype": "BFloat16"} if job.device == "cuda" else {}


def _grpo(job: Job) -> dict[str, Any]:
    size = {"promptsPerStep": job.prompts_per_step, "groupSize": job.group_size}
    reward = {"python": {"path": str(HERE / "even_tokens.py"), "function": "even"}}
    return {
        "algorithm": {"grpo": size},
        "rewards": [reward],
        "sampling": {"maxNewTokens": job.new_tokens, "minNewTokens": job.new_tokens},
    }


def _offline(job: Job) -> dict[str, Any]:
    size = {"batchSize": job.batch_size, "maxLength": job.max_length}
    return {"algorithm": {job.kind: size}}


def grpo_job(folder: Path, prompt_tokens: int, new_tokens: int, model: str = MODEL) -> Job:
    """Two prompts, eight samples each, all lengths forced."""
    noise = random.Random(prompt_tokens)
    rows = [{"prompt": random_text(noise, prompt_tokens), "completion": ""} for _ in range(ROWS)]
    data = write_rows(folder / f"prompts-{prompt_tokens}.jsonl", rows)
    return Job(kind="grpo", model=model_folder(model), data=data, new_tokens=new_tokens)


def sft_job(folder: Path, tokens: int = 256, model: str = MODEL) -> Job:
    """Eight rows a step, all of one length: no padding on either side. The end token is the last."""
    noise = random.Random(tokens)
    half = tokens // 2
    rows = [
        {"prompt": random_text(noise, half), "completion": random_text(noise, tokens - half - 1)}
        for _ in range(ROWS)
    ]
    return Job(kind="sft", model=model_folder(model), data=write_rows(folder / "rows.jsonl", rows))


def gsm8k_job(folder: Path, model: str = MODEL) -> Job:
    """GSM8K as it is, packed by both. Steps of about equal size: 16 rows, or 8 packed rows of 1024."""
    rows = [json.loads(line) for line in GSM8K.read_text().splitlines()]
    named = [{"prompt": row["question"], "completion": row["answer"]} for row in rows]
    data = write_rows(folder / "gsm8k.jsonl", named)
    job = Job(kind="sft", model=model_folder(model), data=data, batch_size=16)
    return replace(job, trl_packing=True, trl_rows=1, trl_accumulate=8)


def random_text(noise: random.Random, length: int) -> str:
    return "".join(noise.choices(string.ascii_lowercase, k=length))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def model_folder(uri: str) -> str:
    return str(resolve_model(uri).path)
