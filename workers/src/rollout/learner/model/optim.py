"""Optimizers and learning-rate schedules.

The fused kernels are used: element-wise, one pass, and equal bit for bit whatever the thread count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from rollout.learner.config.optimizer import OptimizerSettings, ScheduleSettings
from rollout.learner.model.offload import OffloadedOptimizer


def build_optimizer(
    parameters: Iterable[nn.Parameter], settings: OptimizerSettings, *, offloads: bool = False
) -> Optimizer:
    """An optimizer over the fp32 masters. Vectors (norms, biases) are never decayed.

    ``offloads``: its states lie in host memory.
    """
    found = _build(parameters, settings)
    return OffloadedOptimizer(found) if offloads else found


def _build(parameters: Iterable[nn.Parameter], settings: OptimizerSettings) -> Optimizer:
    known = list(parameters)
    groups = [
        {"params": [p for p in known if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in known if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.kind == "sgd":
        return SGD(groups, lr=settings.learning_rate, momentum=settings.momentum)
    return AdamW(
        groups,
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )


def learning_rate(settings: ScheduleSettings, peak: float, step: int) -> float:
    """The learning rate of ``step`` (1-based); all updates of a step share it.

    Warm-up grows as ``step / warmup_steps`` and reaches the peak at its last step; a decay starts
    there and reaches ``minimum_ratio * peak`` at ``horizon_steps``.
    """
    if step <= settings.warmup_steps:
        return peak * step / settings.warmup_steps
    if settings.kind == "constant":
        return peak
    start = max(settings.warmup_steps, 1)
    done = min(1.0, (step - start) / max(1, settings.horizon_steps - start))
    left = (1 + math.cos(math.pi * done)) / 2 if settings.kind == "cosine" else 1 - done
    return peak * (settings.minimum_ratio + (1 - settings.minimum_ratio) * left)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Use ``rate`` from the next update on."""
    for group in optimizer.param_groups:
        group["lr"] = rate
