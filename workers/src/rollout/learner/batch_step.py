"""One step of a learner on a batch: the same for training and for replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollout.errors import RunFailed
from rollout.learner.checkpoint import Progress
from rollout.learner.context import LearnerContext
from rollout.learner.model import randomness
from rollout.learner.objectives.completions import have_branches
from rollout.learner.objectives.contract import Work
from rollout.learner.objectives.plan import StepPlan, plan_step
from rollout.learner.objectives.registry import cutting_rules, objective_of
from rollout.learner.train_step import run_step
from rollout.learner.validation import measure
from rollout.models.experts.families import router_shape
from rollout.models.experts.routes import find_wrong_routes
from rollout.protocol.messages import Batch, Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """A step that was computed and is not committed yet; ids as the batch names them.

    ``tokens`` is the digest of what it learned from.
    """

    step: int
    consumed: tuple[str, ...]
    filtered: dict[str, str]
    plan: StepPlan
    tokens: str
    cursor: Cursor
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch:
    """A step that is about to be computed. ``tokens`` is the digest of what it learns from."""

    step: int
    work: Work
    plan: StepPlan
    tokens: str
    cursor: Cursor


def take_step(
    parts: LearnerContext, progress: Progress, batch: Batch, plan: StepPlan | None
) -> StepResult:
    """Compute the step after ``progress`` on ``batch``; with a recorded ``plan`` exactly as it was."""
    ready = prepare_step(parts, progress, batch, plan)
    metrics = run_step(parts.trainer, ready.work, ready.plan, ready.step)
    if batch.held_out:
        metrics |= measure(parts, batch.held_out)
    reasons = ready.work.filtered()
    return StepResult(
        step=ready.step,
        consumed=tuple(n for i, ids in enumerate(batch.ids) if i not in reasons for n in ids),
        filtered={name: why for i, why in reasons.items() for name in batch.ids[i]},
        plan=ready.plan,
        tokens=ready.tokens,
        cursor=ready.cursor,
        metrics={**metrics, "num_excluded": metrics["num_excluded"] + batch.num_excluded},
    )


def prepare_step(
    parts: LearnerContext, progress: Progress, batch: Batch, plan: StepPlan | None
) -> PreparedBatch:
    """Lay out the step after ``progress`` and seed its randomness.

    Raises RunFailed for an empty batch, for samples whose routes are not of this policy, and for samples of several rows
    where the algorithm learns from one.
    """
    settings, step = parts.trainer.settings, progress.step + 1
    if batch.cursor is None or not (batch.groups or batch.rows):
        raise RunFailed(
            f"step {step}: the batch is empty: all {batch.num_excluded} groups were lost to"
            " infrastructure failures; see the actors' logs, then run again to resume"
        )
    objective = objective_of(settings)
    _check_routes(parts, batch, step)
    if not objective.traits.branches and have_branches(batch.groups):
        raise RunFailed(
            f"step {step}: samples of several rows, and {objective.name} learns from one; the ledger has samples of"
            " another algorithm, or was changed: go on from an earlier snapshot, or begin a new run"
        )
    work, tokens = objective.build_work(parts, batch)
    if plan is None or _num_ranks(plan) != parts.parallel.num_shares:
        plan = plan_step(work.shapes(), cutting_rules(parts), seed=settings.seed, step=step)
    randomness.seed_step(settings.seed, step, parts.parallel.share, parts.parallel.device)
    return PreparedBatch(step=step, work=work, plan=plan, tokens=tokens, cursor=batch.cursor)


def _check_routes(parts: LearnerContext, batch: Batch, step: int) -> None:
    """Raise RunFailed where samples tell other experts than this policy's routers can take, or none of theirs."""
    if not batch.groups:
        return
    shape = router_shape(parts.trainer.policy.model)
    for group in batch.groups:
        if wrong := find_wrong_routes(group.trajectories, shape):
            raise RunFailed(
                f"step {step}: group {group.ordinal}, {wrong}; the ledger has samples of another model, or was"
                " changed: go on from an earlier snapshot, or begin a new run"
            )


def _num_ranks(plan: StepPlan) -> int:
    return len(plan.updates[0].ranks) if plan.updates else 0
