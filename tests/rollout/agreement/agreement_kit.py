"""What the comparisons with TRL share: the arithmetic, the model, our steps, its trainers, the distance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from rollout.learner.config.learner import (
    AlgorithmSettings,
    LearnerSettings,
    OptimizerSettings,
    ScheduleSettings,
)
from rollout.learner.model.numerics import apply_numerics
from rollout.learner.model.optim import build_optimizer
from rollout.learner.model.parallel import Parallel
from rollout.learner.model.policy import Policy
from rollout.learner.objectives.contract import Work
from rollout.learner.objectives.plan import PlanRules, plan_step
from rollout.learner.train_step import Trainer, run_step

MODEL = "rollout://tiny-qwen2?hidden=32&layers=2&heads=2"
STEPS = 20
REFERENCE_NOISE = 3
"""``noise`` of the frozen model beside the policy: not the policy itself, so that no KL is 0."""


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """In what both sides compute, and how they step."""

    dtype: torch.dtype
    optimizer: Literal["sgd", "adamw"]
    rate: float

    @property
    def is_exact(self) -> bool:
        """Whether what would round to float32 is replaced."""
        return self.dtype == torch.float64


EXACT = Arithmetic(dtype=torch.float64, optimizer="sgd", rate=0.05)
USUAL = Arithmetic(dtype=torch.float32, optimizer="adamw", rate=1e-4)
"""As people train; everything of TRL's is its own."""


@contextmanager
def computing_in(arithmetic: Arithmetic) -> Iterator[None]:
    """One thread, repeatable kernels, and new tensors of the arithmetic's type."""
    apply_numerics(threads=1, exact=True)
    before = torch.get_default_dtype()
    torch.set_default_dtype(arithmetic.dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class ExactNorm(nn.Module):
    """The root-mean-square norm in its input's precision."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = weight, epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


def prepared(model: Any, arithmetic: Arithmetic = EXACT, noise: int = 0) -> Any:
    """The model in the arithmetic's type; ``noise`` > 0 moves every weight a little, another way each."""
    model = model.to(arithmetic.dtype)
    for name, module in list(model.named_modules()):
        if arithmetic.is_exact and hasattr(module, "variance_epsilon"):
            parent = model.get_submodule(name.rpartition(".")[0])
            exact = ExactNorm(module.weight, module.variance_epsilon)
            setattr(parent, name.rpartition(".")[2], exact)
    draw = torch.Generator().manual_seed(noise)
    with torch.no_grad():
        for parameter in model.parameters() if noise else ():
            moved = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
            parameter.add_((0.02 * moved).to(arithmetic.dtype))
    return model


@dataclass(kw_only=True)
class Seen:
    """What a side says: the gradient's norm at each step, and the parameters before and after all."""

    norms: list[float]
    start: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]


def take_steps(
    model: Any, algorithm: AlgorithmSettings, works: Iterable[Work], arithmetic: Arithmetic
) -> Seen:
    """Our learner's steps, one on each work."""
    settings = LearnerSettings(
        algorithm=algorithm,
        optimizer=OptimizerSettings(kind=arithmetic.optimizer, learning_rate=arithmetic.rate),
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
    start = copied(model)
    policy = Policy(model, torch.float32, Parallel())
    optimizer = build_optimizer(policy.masters.values(), settings.optimizer)
    trainer = Trainer(policy=policy, optimizer=optimizer, settings=settings)
    norms = []
    for step, work in enumerate(works, start=1):
        plan = plan_step(work.shapes(), PlanRules(tokens_max=4096), seed=0, step=step)
        norms.append(run_step(trainer, work, plan, step)["gradient_norm"])
    return Seen(norms=norms, start=start, parameters=policy.full_masters())


def trl_options(folder: Path, arithmetic: Arithmetic, batch: int) -> dict[str, Any]:
    """What every trainer of TRL is given."""
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": batch,
        "optim": {"sgd": "sgd", "adamw": "adamw_torch"}[arithmetic.optimizer],
        "learning_rate": arithmetic.rate,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "gradient_checkpointing": False,
        "max_steps": STEPS,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }


def train(trainer: Any) -> Seen:
    """TRL's own ``train``, its gradient norms written down before every optimizer step."""
    from transformers import PrinterCallback, TrainerCallback

    norms: list[float] = []

    class Norms(TrainerCallback):
        def on_pre_optimizer_step(self, *given: Any, model: Any, **more: Any) -> None:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            norms.append(float(torch.nn.utils.get_total_norm(gradients)))

    trainer.add_callback(Norms())
    trainer.remove_callback(PrinterCallback)
    start = copied(trainer.model)
    trainer.train()
    return Seen(norms=norms, start=start, parameters=copied(trainer.model))


def copied(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def farthest(a: Seen, b: Seen) -> tuple[float, float]:
    """Largest relative distance of the norms over the steps; that of the parameters after the last.

    Parameters are measured against the way they went, a small part of their own size.
    """
    assert len(a.norms) == STEPS
    assert min(b.norms) > 0
    assert a.parameters.keys() == b.parameters.keys()
    assert torch.equal(_flat(a.start), _flat(b.start))
    norms = max(abs(x - y) / y for x, y in zip(a.norms, b.norms, strict=True))
    way = _flat(b.parameters) - _flat(b.start)
    return norms, float((_flat(a.parameters) - _flat(b.parameters)).norm() / way.norm())


def _flat(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([parameters[name].detach().double().flatten() for name in sorted(parameters)])
