"""One step: losses over micro-batches, one summed gradient per update, clip, optimizer.

Knows nothing of where batches come from or where results go. Refuses to continue from a loss or a
gradient that is not finite: RunFailed names the tensor and the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from rollout.errors import RunFailed
from rollout.learner.metrics import describe_losses
from rollout.learner.optim import learning_rate, set_learning_rate
from rollout.learner.plan import MicroBatch, StepPlan, Update, micro_batches_of
from rollout.learner.policy import Policy
from rollout.learner.settings import LearnerSettings
from rollout.learner.work import Totals, Work

CULPRITS_MAX = 5
"""Parameters named in a message about a broken gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """What a step changes (policy, optimizer) and what it obeys (settings)."""

    policy: Policy
    optimizer: Optimizer
    settings: LearnerSettings


def run_step(trainer: Trainer, work: Work, plan: StepPlan, step: int) -> dict[str, Any]:
    """Apply all updates of ``plan`` and return the step's metrics, equal on every rank.

    Raises RunFailed for a loss or gradient that is not finite; the parameters are then as before the
    update that failed.
    """
    totals = Totals()
    norms: list[float] = []
    for norm in iterate_gradients(trainer, work, plan, totals, step):
        norms.append(float(norm))
        if not math.isfinite(norms[-1]):
            _refuse(trainer.policy, totals, step)
    return describe_step(trainer, work, totals, norms, step)


def iterate_gradients(
    trainer: Trainer, work: Work, plan: StepPlan, totals: Totals, step: int
) -> Iterator[torch.Tensor]:
    """Compute each update's gradient and yield its norm, before it is clipped; going on applies it.

    ``totals`` collects what the losses say, update by update.
    """
    policy = trainer.policy
    set_learning_rate(trainer.optimizer, _rate(trainer.settings, step))
    passes = [[micro for micro, _ in _passes(trainer, update)] for update in plan.updates]
    work.prepare(policy.model, passes)
    for update in plan.updates:
        policy.zero_gradients()
        accumulate_gradients(trainer, work, update, totals)
        policy.sum_gradients()
        norm = policy.gradient_norm() + _doubt(trainer, totals)
        yield norm
        _apply(trainer, norm)


def _doubt(trainer: Trainer, totals: Totals) -> torch.Tensor:
    """0, or NaN where some rank's loss is not finite: a clamp keeps a NaN out of the gradient."""
    parallel = trainer.policy.parallel
    doubt = totals.loss(parallel.device) * 0
    parallel.add_up(doubt)
    return doubt


def describe_step(
    trainer: Trainer, work: Work, totals: Totals, norms: Sequence[float], step: int
) -> dict[str, Any]:
    """The metrics of a step from its updates' totals and gradient norms."""
    sums, maxima = _over_ranks(totals, trainer.policy.parallel.gather)
    return {
        **work.metrics(step),
        **describe_losses(sums, maxima, len(norms)),
        "gradient_norm": max(norms),
        "learning_rate": _rate(trainer.settings, step),
        "num_updates": len(norms),
        "num_epochs": trainer.settings.num_epochs,
    }


def _rate(settings: LearnerSettings, step: int) -> float:
    return learning_rate(settings.schedule, settings.optimizer.learning_rate, step)


def _passes(trainer: Trainer, update: Update) -> list[tuple[MicroBatch, bool]]:
    parallel = trainer.policy.parallel
    return micro_batches_of(update, parallel.rank, aligned=parallel.sharded)


def _apply(trainer: Trainer, norm: torch.Tensor) -> None:
    """Clip the gradient and take the optimizer's step."""
    policy = trainer.policy
    if 0 < trainer.settings.max_grad_norm < float(norm):
        policy.scale_gradients(trainer.settings.max_grad_norm / (norm + 1e-6))
    trainer.optimizer.step()
    policy.cast()


def accumulate_gradients(trainer: Trainer, work: Work, update: Update, totals: Totals) -> None:
    """Backward of this rank's micro-batches; the gradients of all ranks add up to the update's."""
    whole = work.denominators(update)
    for micro, counts in _passes(trainer, update):
        with torch.set_grad_enabled(micro.learns):
            part = work.micro_loss(trainer.policy.model, micro, whole)
        if micro.learns:
            (part.loss if counts else part.loss * 0).backward()
        if counts:
            totals.add(part)


Numbers = tuple[dict[str, float], dict[str, float]]


def _over_ranks(totals: Totals, gather: Callable[[Numbers], list[Numbers]]) -> Numbers:
    sums: dict[str, float] = {}
    maxima: dict[str, float] = {}
    for rank_sums, rank_maxima in gather(totals.local()):
        for name, value in rank_sums.items():
            sums[name] = sums.get(name, 0.0) + value
        for name, value in rank_maxima.items():
            maxima[name] = max(maxima.get(name, value), value)
    return sums, maxima


def _refuse(policy: Policy, totals: Totals, step: int) -> None:
    sums, maxima = totals.local()
    values = {**sums, **maxima}
    terms = sorted(name for name, value in values.items() if not math.isfinite(value))
    said = f"; not finite in the loss: {', '.join(terms)}" if terms else ""
    raise RunFailed(
        f"step {step}: {_broken(policy, terms)} is not finite{said}; nothing of this step was"
        " committed. Lower train.optimizer learningRate, or look at the batch with"
        " `rollout debug one-batch`"
    )


def _broken(policy: Policy, terms: Sequence[str]) -> str:
    culprits = policy.broken_gradients()
    if not culprits:
        return "the loss" if terms else "the norm of the gradient"
    more = f" and {len(culprits) - CULPRITS_MAX} more" if len(culprits) > CULPRITS_MAX else ""
    return f"the gradient of {', '.join(culprits[:CULPRITS_MAX])}{more}"
