"""Our learner and TRL 1.16's trainers on the same rows: SFT, DPO, IPO, KTO, Reward."""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from agreement_kit import (
    EXACT,
    REFERENCE_NOISE,
    STEPS,
    Arithmetic,
    Seen,
    prepared,
    take_steps,
    train,
    trl_options,
)
from safetensors.torch import save_file

from rollout.algorithms.preference.dpo import DpoSettings
from rollout.algorithms.preference.ipo import IpoSettings
from rollout.algorithms.preference.kto import KtoSettings
from rollout.algorithms.preference.reward_model import RewardModelSettings
from rollout.learner.config.preference import LabelSettings, PairSettings, RewardSettings
from rollout.learner.config.sft import SftSettings
from rollout.learner.model.parallel import Parallel
from rollout.learner.model.policy import load_model
from rollout.learner.model.scorer import load_scorer
from rollout.learner.objectives.preference.data import render_labelled, render_pairs
from rollout.learner.objectives.preference.kto import KtoWork
from rollout.learner.objectives.preference.pairs import PairWork
from rollout.learner.objectives.preference.reward import RewardWork
from rollout.learner.objectives.sft import SftWork, render_rows
from rollout.models.scoring import write_score_config
from rollout.protocol.messages import DataRow
from rollout.rendering import build_renderer
from rollout.rendering.tokenizer import load_tokenizer

BATCH = 6
CPU = torch.device("cpu")


def write_reward_model(path: Path, folder: Path) -> Path:
    """A copy of the model with a score head, which both sides load."""
    shutil.copytree(path, folder)
    tensors = {n: p.detach().float().clone() for n, p in load_scorer(path, 5).named_parameters()}
    save_file(tensors, folder / "model.safetensors")
    write_score_config(folder, load_tokenizer(folder).pad_id)
    return folder


def make_rows(seed: int = 1) -> list[dict[str, Any]]:
    """Prompts and two answers of words, none a repetition; labels are mixed in every batch."""
    draw = random.Random(seed)

    def words(longest: int) -> str:
        return "".join(draw.choice("abcdefghij ") for _ in range(draw.randint(2, longest))) + "x"

    return [
        {
            "prompt": f"{i}:{words(7)}",
            "chosen": f"a{words(9)}",
            "rejected": f"b{words(12)}",
            "margin": draw.choice([0.0, 0.5]),
            "label": i % 3 > 0,
        }
        for i in range(STEPS * BATCH)
    ]


ROWS = make_rows()


def batches(path: Path, renders: Callable[..., Any]) -> Iterator[Any]:
    """Each step's rows as tokens."""
    renderer = build_renderer(path, "plain")
    for start in range(0, len(ROWS), BATCH):
        rows = [
            DataRow(
                ordinal=start + i,
                row={
                    **row,
                    "messages": [{"role": "user", "content": row["prompt"]}],
                    "answer": row["chosen"],
                },
            )
            for i, row in enumerate(ROWS[start : start + BATCH])
        ]
        yield renders(rows, renderer)


def ours(path: Path, algorithm: Any, arithmetic: Arithmetic = EXACT) -> Seen:
    scores = isinstance(algorithm, RewardSettings)
    model = prepared(load_scorer(path) if scores else load_model(path), arithmetic)
    return take_steps(model, algorithm, works(path, algorithm, arithmetic), arithmetic)


def works(path: Path, algorithm: Any, arithmetic: Arithmetic) -> Iterator[Any]:
    if isinstance(algorithm, SftSettings):
        for sequences in batches(path, lambda rows, r: render_rows(rows, r, algorithm)):
            yield SftWork(sequences, CPU, algorithm.label_smoothing)
        return
    if isinstance(algorithm, RewardSettings):
        for pairs in batches(path, render_pairs):
            yield RewardWork(pairs, algorithm, CPU)
        return
    reference = prepared(load_model(path), arithmetic, REFERENCE_NOISE)
    if isinstance(algorithm, LabelSettings):
        for rows in batches(path, render_labelled):
            yield KtoWork(rows, algorithm, Parallel(), reference)
        return
    for pairs in batches(path, render_pairs):
        yield PairWork(pairs, algorithm, CPU, reference)


def plain_head(model: Any, **options: Any) -> None:
    """TRL's fused head by the model's own logits, in their precision."""
    from trl.trainer.utils import FusedCausalLMOutput

    original = model.forward

    @functools.wraps(type(model).forward)
    def forward(*args: Any, fused_lm_head: bool = False, labels: Any = None, **kwargs: Any) -> Any:
        count = kwargs.pop("num_items_in_batch", None)
        if not fused_lm_head:
            return original(*args, labels=labels, **kwargs)
        logits = original(*args, **kwargs).logits[:, :-1]
        targets = labels[:, 1:]
        mask = targets != -100
        logp = logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        logp = logp.masked_fill(~mask, 0)
        nothing = torch.zeros_like(logp.detach())
        return FusedCausalLMOutput(
            loss=-logp.sum() / (mask.sum() if count is None else count),
            log_probs=logp,
            entropy=nothing,
            mean_logits=nothing,
            is_top1=nothing.bool(),
            label_mask=mask,
        )

    model.forward = forward


def theirs(
    path: Path, folder: Path, base: str, given: dict[str, Any], arithmetic: Arithmetic = EXACT
) -> Seen:
    """In float64 TRL's fused head, which rounds to float32, is replaced."""
    module = __import__(f"trl.trainer.{base.lower()}_trainer", fromlist=["x"])
    with pytest.MonkeyPatch.context() as patch:
        if arithmetic.is_exact and base != "Reward":
            patch.setattr(module, "add_fused_lm_head", plain_head)
        return train(trl_trainer(path, folder, base, given, arithmetic))


def trl_trainer(
    path: Path, folder: Path, base: str, given: dict[str, Any], arithmetic: Arithmetic
) -> Any:
    import trl
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = None
    loads = AutoModelForSequenceClassification.from_pretrained if base == "Reward" else load_model
    more = {}
    if base in ("DPO", "KTO"):
        more["ref_model"] = prepared(load_model(path), arithmetic, REFERENCE_NOISE)
    options = trl_options(folder, arithmetic, BATCH)
    return getattr(trl, f"{base}Trainer")(
        prepared(loads(path), arithmetic),
        args=getattr(trl, f"{base}Config")(
            train_sampling_strategy="sequential", **options, **given
        ),
        train_dataset=Dataset.from_list([COLUMNS[base](row) for row in ROWS]),
        processing_class=tokenizer,
        **more,
    )


COLUMNS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "SFT": lambda row: {"prompt": row["prompt"], "completion": row["chosen"]},
    "DPO": lambda row: {name: row[name] for name in ("prompt", "chosen", "rejected")},
    "KTO": lambda row: {
        "prompt": row["prompt"],
        "completion": row["chosen"],
        "label": row["label"],
    },
    "Reward": lambda row: {name: row[name] for name in ("prompt", "chosen", "rejected", "margin")},
}


def pairs(loss: Any) -> PairSettings:
    return PairSettings(loss=loss, max_length=64)


def sft(**knobs: Any) -> SftSettings:
    return SftSettings(loss="CompletionOnly", packing=True, max_length=64, **knobs)


CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "sft": ("SFT", sft(), {}),
    "sft smoothed": ("SFT", sft(label_smoothing=0.1), {"label_smoothing_factor": 0.1}),
    "dpo": ("DPO", pairs(DpoSettings(beta=0.3)), {"beta": 0.3}),
    "dpo with sft": (
        "DPO",
        pairs(DpoSettings(beta=0.3, sft_coefficient=0.5)),
        {"beta": 0.3, "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]},
    ),
    "robust": (
        "DPO",
        pairs(DpoSettings(beta=0.3, form="Robust", label_smoothing=0.1)),
        {"beta": 0.3, "loss_type": ["robust"], "label_smoothing": 0.1},
    ),
    "hinge": (
        "DPO",
        pairs(DpoSettings(beta=0.01, form="Hinge")),  # small: past a margin there is no gradient
        {"beta": 0.01, "loss_type": ["hinge"]},
    ),
    "ipo": ("DPO", pairs(IpoSettings(beta=0.5)), {"beta": 0.5, "loss_type": ["ipo"]}),
    "kto": (
        "KTO",
        LabelSettings(loss=KtoSettings(beta=0.3, desirable_weight=1.3), max_length=64),
        {"beta": 0.3, "desirable_weight": 1.3},
    ),
    "reward": (
        "Reward",
        RewardSettings(loss=RewardModelSettings(centering_coefficient=0.02), max_length=64, seed=5),
        {"center_rewards_coefficient": 0.02},
    ),
}
