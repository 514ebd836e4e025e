"""Our learner and TRL 1.16's trainers, side by side on the same rows, in float64: SFT, DPO, IPO, KTO, Reward.

Both take 20 steps of SGD from the same weights, with the same reference beside them, on the same text:
TRL tokenizes, batches, pads, scores and steps by itself; ours renders and takes ``run_step``. Only what
would round to float32 is replaced: TRL's fused head by the plain logits, and on both sides the norm.
"""

from __future__ import annotations

import functools
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from rollout.algorithms.dpo import DpoSettings
from rollout.algorithms.ipo import IpoSettings
from rollout.algorithms.kto import KtoSettings
from rollout.algorithms.reward_model import RewardModelSettings
from rollout.coordinator.messages import DataRow
from rollout.learner.kto_work import KtoWork
from rollout.learner.numerics import apply_numerics
from rollout.learner.optim import build_optimizer
from rollout.learner.parallel import Parallel
from rollout.learner.plan import PlanRules, plan_step
from rollout.learner.policy import Policy, load_model
from rollout.learner.preference_data import render_labelled, render_pairs
from rollout.learner.preference_settings import LabelSettings, PairSettings, RewardSettings
from rollout.learner.preference_work import PairWork
from rollout.learner.reward_work import RewardWork
from rollout.learner.scorer import load_scorer
from rollout.learner.settings import (
    LearnerSettings,
    OptimizerSettings,
    ScheduleSettings,
    SftSettings,
)
from rollout.learner.sft_work import SftWork, render_rows
from rollout.learner.step import Trainer, run_step
from rollout.models.resolve import resolve_model
from rollout.models.scoring import write_score_config
from rollout.rendering import build_renderer
from rollout.rendering.tokenizer import load_tokenizer

pytestmark = pytest.mark.process

STEPS, BATCH = 20, 6
RATE = 0.05
CLOSE = 1e-8
CPU = torch.device("cpu")


class ExactNorm(nn.Module):
    """The root-mean-square norm in its input's precision."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = weight, epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


def exactly(model: Any, noise: int = 0) -> Any:
    """The model in float64; ``noise`` > 0 moves every weight a little, another way for each number."""
    model = model.double()
    for name, module in list(model.named_modules()):
        if hasattr(module, "variance_epsilon"):
            parent = model.get_submodule(name.rpartition(".")[0])
            exact = ExactNorm(module.weight, module.variance_epsilon)
            setattr(parent, name.rpartition(".")[2], exact)
    draw = torch.Generator().manual_seed(noise)
    with torch.no_grad():
        for parameter in model.parameters() if noise else ():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return model


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    apply_numerics(threads=1, exact=True)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    uri = "rollout://tiny-qwen2?hidden=32&layers=2&heads=2"
    return resolve_model(uri, cache_dir=tmp_path_factory.mktemp("models")).path


@pytest.fixture(scope="module")
def reward_path(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward") / "model"
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


@dataclass(kw_only=True)
class Seen:
    """What both sides say: the gradient's norm at each step, and the parameters after the last."""

    norms: list[float]
    parameters: dict[str, torch.Tensor]


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


def ours(path: Path, algorithm: Any) -> Seen:
    settings = LearnerSettings(
        algorithm=algorithm,
        optimizer=OptimizerSettings(kind="sgd", learning_rate=RATE),
        schedule=ScheduleSettings(),
        max_grad_norm=0.0,
        micro_batch_tokens=4096,
        activation_checkpointing=False,
        dtype="Float32",
        exact=True,
        hash_every_steps=1,
        anchor_every_steps=100,
        seed=0,
        spec_digest="",
    )
    scores = isinstance(algorithm, RewardSettings)
    model = exactly(load_scorer(path) if scores else load_model(path))
    policy = Policy(model, torch.float32, Parallel())
    optimizer = build_optimizer(policy.masters.values(), settings.optimizer)
    trainer = Trainer(policy=policy, optimizer=optimizer, settings=settings)
    norms = []
    for step, work in enumerate(works(path, algorithm), start=1):
        plan = plan_step(work.shapes(), PlanRules(tokens_max=4096), seed=0, step=step)
        norms.append(run_step(trainer, work, plan, step)["gradient_norm"])
    return Seen(norms=norms, parameters=policy.full_masters())


def works(path: Path, algorithm: Any) -> Iterator[Any]:
    if isinstance(algorithm, SftSettings):
        for sequences in batches(path, lambda rows, r: render_rows(rows, r, algorithm)):
            yield SftWork(sequences, CPU, algorithm.label_smoothing)
        return
    if isinstance(algorithm, RewardSettings):
        for pairs in batches(path, render_pairs):
            yield RewardWork(pairs, algorithm, CPU)
        return
    reference = exactly(load_model(path), noise=3)
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
    path: Path, folder: Path, base: str, given: dict[str, Any], patch: pytest.MonkeyPatch
) -> Seen:
    import trl
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback

    class Norms(TrainerCallback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_pre_optimizer_step(self, *given: Any, model: Any, **more: Any) -> None:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            self.seen.append(float(torch.nn.utils.get_total_norm(gradients)))

    module = __import__(f"trl.trainer.{base.lower()}_trainer", fromlist=["x"])
    if base != "Reward":
        patch.setattr(module, "add_fused_lm_head", plain_head)
    config = getattr(trl, f"{base}Config")(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=BATCH,
        optim="sgd",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        gradient_checkpointing=False,
        train_sampling_strategy="sequential",
        max_steps=STEPS,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **given,
    )
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = None
    norms = Norms()
    if base == "Reward":
        model = exactly(AutoModelForSequenceClassification.from_pretrained(path))
    else:
        model = exactly(load_model(path))
    more = {"ref_model": exactly(load_model(path), noise=3)} if base in ("DPO", "KTO") else {}
    trainer = getattr(trl, f"{base}Trainer")(
        model,
        args=config,
        train_dataset=Dataset.from_list([COLUMNS[base](row) for row in ROWS]),
        processing_class=tokenizer,
        callbacks=[norms],
        **more,
    )
    trainer.train()
    parameters = {name: p.detach() for name, p in trainer.model.named_parameters()}
    return Seen(norms=norms.seen, parameters=parameters)


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


def farthest(a: Seen, b: Seen) -> tuple[float, float]:
    """Largest relative distance of norms over the steps, and of parameters after the last."""
    assert min(b.norms) > 0
    norms = max(abs(x - y) / y for x, y in zip(a.norms, b.norms, strict=True))
    assert a.parameters.keys() == b.parameters.keys()
    moved = max(float((p - b.parameters[n]).norm() / p.norm()) for n, p in a.parameters.items())
    return norms, moved


@pytest.mark.parametrize("name", CASES)
def test_the_trainers_take_the_same_steps(
    name, path, reward_path, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, algorithm, given = CASES[name]
    model_path = reward_path if base == "Reward" else path
    found = ours(model_path, algorithm)
    norms, moved = farthest(found, theirs(model_path, tmp_path, base, given, monkeypatch))
    assert max(norms, moved) < CLOSE
    print(json.dumps({"case": name, "norms": norms, "parameters": moved}))


def test_both_sides_moved_and_another_loss_would_show(path) -> None:
    first = ours(path, pairs(DpoSettings(beta=0.3)))
    start = dict(exactly(load_model(path)).named_parameters())
    moved = [float((p - start[n]).norm().detach()) for n, p in first.parameters.items()]
    assert min(moved) > 1e-7
    assert max(moved) > 1e-2
    smoothed = pairs(DpoSettings(beta=0.3, form="Conservative", label_smoothing=0.01))
    assert max(farthest(first, ours(path, smoothed))) > 1e-5
