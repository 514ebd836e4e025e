"""One step: losses over micro-batches, one summed gradient per update, clip, optimizer.

Knows nothing of where batches come from or where results go. Refuses to continue from a loss or a
gradient that is not finite: RunFailed names the tensor and the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from rollout.algorithms.aggregation import Denominators
from rollout.errors import RunFailed
from rollout.learner.config.learner import LearnerSettings
from rollout.learner.model.critic import Critic
from rollout.learner.model.kl_control import KlControl
from rollout.learner.model.optim import learning_rate, set_learning_rate
from rollout.learner.model.parallel import Parallel
from rollout.learner.model.policy import Policy
from rollout.learner.objectives.contract import Totals, ValuePart, ValueWork, Work
from rollout.learner.objectives.metrics import describe_losses
from rollout.learner.objectives.plan import MicroBatch, StepPlan, Update, micro_batches_of

CULPRITS_MAX = 5
"""Parameters named in a message about a broken gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """What a step changes (policy, optimizer) and what it obeys (settings).

    ``critic`` and ``control`` (the KL coefficient) are PPO's; None where the algorithm has none.
    """

    policy: Policy
    optimizer: Optimizer
    settings: LearnerSettings
    critic: Critic | None = None
    control: KlControl | None = None

    def policy_learns(self, step: int) -> bool:
        """Whether the policy moves in this step: not while its critic is warming up."""
        return self.critic is None or step > self.critic.settings.warmup_steps


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
            _refuse(trainer, totals, step)
    metrics = describe_step(trainer, work, totals, norms, step)
    if trainer.control is not None:
        trainer.control.observe(kl=metrics["kl_per_answer"], num_samples=metrics["num_sequences"])
    return metrics


def iterate_gradients(
    trainer: Trainer, work: Work, plan: StepPlan, totals: Totals, step: int
) -> Iterator[torch.Tensor]:
    """Compute each update's gradient and yield its norm, before it is clipped; going on applies it.

    ``totals`` collects what the losses say, update by update. A critic's gradient is computed and
    applied beside the policy's; where it is not finite, the norm that is yielded is not either.
    """
    policy, learns = trainer.policy, trainer.policy_learns(step)
    set_learning_rate(trainer.optimizer, _rate(trainer.settings, step))
    passes = [[micro for micro, _ in _passes(trainer, update)] for update in plan.updates]
    work.prepare(policy.model, passes)
    for update in plan.updates:
        policy.zero_gradients()
        accumulate_gradients(trainer, work, update, totals, learns=learns)
        policy.sum_gradients()
        norm = policy.gradient_norm()
        critic_norm = None if trainer.critic is None else _finish_critic(trainer.critic, totals)
        norm = norm + _doubt(trainer, totals)
        yield norm if critic_norm is None else norm + critic_norm * 0
        if learns:
            policy.update(trainer.optimizer, norm, max_norm=trainer.settings.max_grad_norm)
        if trainer.critic is not None and critic_norm is not None:
            trainer.critic.apply(critic_norm, _critic_rate(trainer.critic, trainer.settings, step))


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
    sums, maxima = add_ranks(totals, trainer.policy.parallel)
    return {
        **work.metrics(step),
        **describe_losses(sums, maxima, len(norms)),
        "gradient_norm": max(norms),
        "learning_rate": _rate(trainer.settings, step),
        "num_updates": len(norms),
        "num_epochs": trainer.settings.num_epochs,
        **_describe_critic(trainer, step),
    }


def _describe_critic(trainer: Trainer, step: int) -> dict[str, float]:
    if trainer.critic is None:
        return {}
    return {"critic_learning_rate": _critic_rate(trainer.critic, trainer.settings, step)}


def _rate(settings: LearnerSettings, step: int) -> float:
    return learning_rate(settings.schedule, settings.optimizer.learning_rate, step)


def _critic_rate(critic: Critic, settings: LearnerSettings, step: int) -> float:
    return learning_rate(settings.schedule, critic.settings.optimizer.learning_rate, step)


def _passes(trainer: Trainer, update: Update) -> list[tuple[MicroBatch, bool]]:
    return passes_of(update, trainer.policy.parallel)


def passes_of(update: Update, parallel: Parallel) -> list[tuple[MicroBatch, bool]]:
    """This rank's micro-batches of an update, and whether each one counts."""
    passes = micro_batches_of(update, parallel.share, aligned=parallel.sharded)
    return [(micro, counts and parallel.counts) for micro, counts in passes]


def accumulate_gradients(
    trainer: Trainer, work: Work, update: Update, totals: Totals, *, learns: bool = True
) -> None:
    """Backward of this rank's micro-batches; the gradients of all ranks add up to the update's.

    ``learns`` False computes the policy's losses for their metrics only.
    """
    whole = work.denominators(update)
    for micro, counts in _passes(trainer, update):
        backward = micro.learns and learns
        with torch.set_grad_enabled(backward):
            part = work.micro_loss(trainer.policy.model, micro, whole)
        if backward:
            (part.loss if counts else part.loss * 0).backward()
        if counts:
            totals.add(part)
    if trainer.critic is not None:
        _accumulate_values(trainer.critic, work, _passes(trainer, update), whole, totals)


def _accumulate_values(
    critic: Critic,
    work: Work,
    passes: Sequence[tuple[MicroBatch, bool]],
    whole: Denominators,
    totals: Totals,
) -> None:
    """The critic's pass, after the policy's: never are the activations of both alive."""
    assert isinstance(work, ValueWork)
    critic.held.zero_gradients()
    for micro, counts in passes:
        part = work.value_loss(critic.model, micro, whole)
        (part.loss if counts else part.loss * 0).backward()
        if counts:
            totals.add(part)


def _finish_critic(critic: Critic, totals: Totals) -> torch.Tensor:
    norm = critic.finish_gradient()
    totals.add(ValuePart(loss=norm, sums={}, maxima={"critic_gradient_norm": norm.detach()}))
    return norm


Numbers = tuple[dict[str, float], dict[str, float]]


def add_ranks(totals: Totals, parallel: Parallel) -> Numbers:
    """Sums and maxima over all ranks."""
    sums: dict[str, float] = {}
    maxima: dict[str, float] = {}
    for rank_sums, rank_maxima in parallel.gather(totals.local(), Numbers):
        for name, value in rank_sums.items():
            sums[name] = sums.get(name, 0.0) + value
        for name, value in rank_maxima.items():
            maxima[name] = max(maxima.get(name, value), value)
    return sums, maxima


def _refuse(trainer: Trainer, totals: Totals, step: int) -> None:
    sums, maxima = totals.local()
    values = {**sums, **maxima}
    terms = sorted(name for name, value in values.items() if not math.isfinite(value))
    said = f"; not finite in the loss: {', '.join(terms)}" if terms else ""
    raise RunFailed(
        f"step {step}: {_broken(trainer, terms)} is not finite{said}; nothing of this step was"
        " committed. Lower train.optimizer learningRate, or look at the batch with"
        " `rollout debug one-batch`"
    )


def _broken(trainer: Trainer, terms: Sequence[str]) -> str:
    culprits = trainer.policy.broken_gradients()
    if trainer.critic is not None:
        culprits += [f"the critic's {name}" for name in trainer.critic.held.broken_gradients()]
    if not culprits:
        return "the loss" if terms else "the norm of the gradient"
    more = f" and {len(culprits) - CULPRITS_MAX} more" if len(culprits) > CULPRITS_MAX else ""
    return f"the gradient of {', '.join(culprits[:CULPRITS_MAX])}{more}"
