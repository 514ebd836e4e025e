"""What `rollout plan` says that a learner holds, against the bytes of tensors that its step has alive at once.

Thirty settings drawn by a seed (``run.py memory 5 20`` measures five from the 21st on): shapes of Qwen2 and Qwen3, SFT,
DPO and GRPO with and without a reference, adapters, both numbers, with and without recomputation, of one and of several
passes an update. Runs on the CPU: kernels of a CUDA device hold less (docs/reference/gpu.md).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import shaped_model
import torch
from figures import Figure, level
from jobs import LEARNING_RATE, ROWS, grpo_job, manifest_of, random_text, sft_job, write_rows
from one_process import Clock, OneProcess, plan_config
from preference_jobs import dpo_job
from tensor_peak import TensorPeak

from rollout.learner.batch_step import take_step
from rollout.learner.context import LearnerContext
from rollout.models.shapes import read_shape
from rollout.runs.plan.facts import model_facts
from rollout_api.checks.accelerators.memory import estimate_learner

POINTS = 30
SEED = 20261127
HOST_PARTS = frozenset({"staging"})
"""Parts of an estimate that lie in the host's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One learner. ``tokens`` is a pass's bound; ``beta`` asks for a reference in GRPO."""

    kind: str
    family: str
    heads: int
    kv_heads: int
    head_dim: int
    wide: int
    layers: int
    vocab: int
    length: int
    tokens: int
    recompute: bool
    dtype: str
    rank: int
    beta: bool
    sgd: bool

    def __str__(self) -> str:
        marks = [
            *(["recompute"] if self.recompute else []),
            *([f"rank {self.rank}"] if self.rank else []),
            *(["reference"] if self.beta else []),
            *(["sgd"] if self.sgd else []),
        ]
        shape = f"{self.family} {self.layers}x{self.heads * self.head_dim}, V {self.vocab}"
        return ", ".join([self.kind, shape, self.dtype, f"{self.tokens} by {self.length}", *marks])


def draw_settings(count: int) -> list[Setting]:
    """The first ``count``; equal for everybody."""
    noise = random.Random(SEED)
    return [_draw(noise) for _ in range(count)]


def measure(count: str = str(POINTS), first: str = "0") -> Iterator[Figure]:
    """A figure a setting, and the median."""
    ratios = []
    for setting in draw_settings(int(first) + int(count))[int(first) :]:
        said, found, parts = compare(setting)
        ratios.append(said / found)
        yield level(f"{setting}", [said / found], "x", "<= 1.25")
        if not 0.97 <= said / found <= 1.25:
            print(
                f"  {found / 2**20:.1f} MiB measured, {said / 2**20:.1f} said: {parts}", flush=True
            )
    yield level(f"least of {len(ratios)}: said over measured", [min(ratios)], "x", ">= 0.97")
    yield level(f"most of {len(ratios)}: said over measured", [max(ratios)], "x", "<= 1.25")
    ordered = sorted(ratios)
    middle = ordered[len(ordered) // 2]
    yield level(f"median of {len(ratios)}: said over measured", [middle], "x", "<= 1.1")


def compare(setting: Setting) -> tuple[int, int, Mapping[str, int]]:
    """Bytes that the plan says, bytes that a step had, and the plan's parts in MiB."""
    with TemporaryDirectory(prefix="rollout-bench-memory-") as name:
        folder = Path(name)
        manifest = folder / "run.yaml"
        manifest.write_text(json.dumps(_manifest(folder, setting)))
        config = plan_config(manifest, folder / "run")
        model = model_facts(read_shape(Path(config.resolved.model_path)))
        said = estimate_learner(config.spec, model, setting.length)
        parts = {part: size for part, size in said.parts if part not in HOST_PARTS}
        found = asyncio.run(_peak(OneProcess(config)))
    return sum(parts.values()), found, {k: round(v / 2**20) for k, v in parts.items()}


async def _peak(run: OneProcess) -> int:
    await run.step()  # the optimizer's state is made
    ordinals, rows = _next(run)
    batch = await run._batch(ordinals, rows, Clock())
    with TensorPeak(_there(run.parts)) as peak:
        take_step(run.parts, run.progress, batch, plan=None)
    return peak.peak


def _next(run: OneProcess) -> tuple[range, Any]:
    start = run.progress.cursor.next_ordinal
    ordinals = range(start, start + run.plan.train.tasks_per_step)
    return ordinals, run.rows.train(ordinals)


def _there(parts: LearnerContext) -> Iterator[torch.Tensor]:
    trainer = parts.trainer
    models = [trainer.policy.model, parts.reference]
    for model in models:
        if isinstance(model, torch.nn.Module):
            yield from model.parameters()
            yield from model.buffers()
    yield from trainer.policy.masters.values()
    yield from (p.grad for p in trainer.policy.masters.values() if p.grad is not None)
    for state in trainer.optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _draw(noise: random.Random) -> Setting:
    heads = noise.choice([4, 8])
    kind = noise.choice(["sft", "sft", "dpo", "grpo", "grpo"])
    length = noise.choice([128, 256])
    return Setting(
        kind=kind,
        family=noise.choice(["qwen2", "qwen3"]),
        heads=heads,
        kv_heads=noise.choice([1, 2, 4]),
        head_dim=noise.choice([32, 64]),
        wide=noise.choice([2, 3, 4, 5]),
        layers=noise.choice([2, 4, 6, 8]),
        vocab=noise.choice([1024, 4096, 16384]),
        length=length,
        tokens=length * noise.choice([2, 4, 8]),
        recompute=noise.random() < 0.4,
        dtype=noise.choice(["BFloat16", "BFloat16", "Float32"]),
        rank=noise.choice([0, 0, 0, 8]),
        beta=kind == "grpo" and noise.random() < 0.5,
        sgd=noise.random() < 0.15,
    )


def _manifest(folder: Path, setting: Setting) -> dict[str, Any]:
    uri = f"file://{_model(folder / 'model', setting)}"
    if setting.kind == "sft":
        job = replace(sft_job(folder, tokens=setting.length, model=uri), batch_size=16)
        job = replace(job, data=_rows(folder, "completion", setting.length))
    elif setting.kind == "dpo":
        job = replace(dpo_job(folder, uri), batch_size=8)
        job = replace(job, data=_rows(folder, "chosen", setting.length))
    else:
        prompt = setting.length // 8
        job = grpo_job(folder, prompt, setting.length - prompt, uri)
        job = replace(job, group_size=8, prompts_per_step=2)
    made = manifest_of(job, steps=3)
    spec, train = made["spec"], made["spec"]["train"]
    spec["model"]["dtype"] = setting.dtype
    if setting.rank:
        spec["model"]["lora"] = {"rank": setting.rank}
    train["microBatchTokens"] = setting.tokens
    train["activationCheckpointing"] = setting.recompute
    if setting.sgd:
        train["optimizer"] = {"sgd": {"learningRate": str(LEARNING_RATE)}}
    if setting.beta:
        train["algorithm"]["grpo"]["klCoefficient"] = "0.01"
    return made


def _rows(folder: Path, answer: str, length: int) -> str:
    """Rows of an eighth of a prompt: nearly all tokens are scored, which is what a plan takes them to be."""
    noise = random.Random(length)
    prompt = length // 8
    rows = [
        {
            "prompt": random_text(noise, prompt),
            answer: random_text(noise, length - prompt - 1),
            **({"rejected": random_text(noise, length - prompt - 1)} if answer == "chosen" else {}),
        }
        for _ in range(ROWS)
    ]
    return write_rows(folder / f"{answer}.jsonl", rows)


def _model(folder: Path, setting: Setting) -> str:
    folder.mkdir()
    hidden = setting.heads * setting.head_dim
    sizes = {
        "vocab_size": setting.vocab,
        "hidden_size": hidden,
        "intermediate_size": setting.wide * hidden,
        "num_hidden_layers": setting.layers,
        "num_attention_heads": setting.heads,
        "num_key_value_heads": setting.kv_heads,
    }
    if setting.family == "qwen2":
        config = shaped_model.qwen2_half_billion(**sizes)
    else:
        config = shaped_model.qwen3_point_six_billion(**sizes, head_dim=setting.head_dim)
    return shaped_model.write_model(folder, config, "cpu")
