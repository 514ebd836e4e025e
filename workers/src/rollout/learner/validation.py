"""Measuring on rows that are never learned from: the loss, and for preferences how many are in order.

The same work as in training, forward only, after a step; nothing of the run's state changes, so whether
it is measured never shows in the hash chain.
"""

from __future__ import annotations

from typing import Any

import torch

from rollout.learner.context import LearnerContext
from rollout.learner.objectives.contract import Totals
from rollout.learner.objectives.metrics import describe_losses
from rollout.learner.objectives.plan import plan_step
from rollout.learner.objectives.registry import cutting_rules, objective_of
from rollout.learner.train_step import add_ranks, passes_of
from rollout.protocol.messages import Batch, DataRow

PREFIX = "eval_"


def measure(parts: LearnerContext, rows: tuple[DataRow, ...]) -> dict[str, Any]:
    """Metrics of ``rows`` under the policy as it stands, by name behind ``eval_``; call on every rank."""
    settings, parallel = parts.trainer.settings, parts.parallel
    model = parts.trainer.policy.model
    work, _ = objective_of(settings).build_work(parts, Batch(step=0, rows=rows))
    totals, measured = Totals(), 0
    with torch.no_grad():
        for update in plan_step(
            work.shapes(), cutting_rules(parts), seed=settings.seed, step=0
        ).updates:
            passes = passes_of(update, parallel)
            work.prepare(model, [[micro for micro, _ in passes]])
            whole = work.denominators(update)
            measured += whole.num_sequences
            for micro, counts in passes:
                part = work.micro_loss(model, micro, whole)
                if counts:
                    totals.add(part)
    sums, maxima = add_ranks(totals, parallel)
    found = {**describe_losses(sums, maxima, 1), "num_sequences": measured}
    return {f"{PREFIX}{name}": value for name, value in found.items()}
