"""One batch under the microscope: what a step sees and wants to do, sample by sample and by parameter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rollout.debug.bench import Bench, advance, begin, follow, open_bench
from rollout.debug.finite import broken_losses, broken_tokens, broken_weights, watched_outputs
from rollout.debug.observe import Observed, describe_tokens
from rollout.debug.samples import describe_samples
from rollout.errors import SpecError
from rollout.learner.batch_step import PreparedBatch, prepare_step
from rollout.learner.checkpoint import Progress
from rollout.learner.model.parallel import whole
from rollout.learner.model.policy import Policy
from rollout.learner.objectives.contract import Totals
from rollout.learner.objectives.plan import decode_plan
from rollout.learner.train_step import Trainer, describe_step, iterate_gradients


def inspect_batch(run_dir: Path, step: int) -> dict[str, Any]:
    """The batch of ``step`` under the policy that stood before it, as plain data; nothing is kept.

    ``step`` is committed, or the one after the last: what a run that failed has failed on.
    ``samples`` are in the order of consumption, ``parameters`` hold norms of the gradient before
    clipping (of a step's several updates the largest) and of the weight before the step, ``metrics``
    are the step's, ``not_finite`` names tensors, causes first. ``state_equal``: the state before the
    step is the one that was committed.
    Raises SpecError, LedgerError, DataError or StoreError.
    """
    with open_bench(run_dir) as bench:
        last = bench.recording.last_step
        if not 1 <= step <= last + 1:
            raise SpecError(f"step {step}: this run has committed steps 1 to {last}")
        progress, equal = _stand_before(bench, step)
        found = _look(bench, progress, committed=step <= last)
        return {"step": step, "committed": step <= last, "state_equal": equal, **found}


def _stand_before(bench: Bench, step: int) -> tuple[Progress, bool]:
    start = begin(bench, step - 1)
    progress, equal = start.progress, start.weights_equal and start.chain_equal
    while progress.step < step - 1:
        again, _ = advance(bench, progress)
        progress, equal = again.progress, again.equal
    return progress, equal


def _look(bench: Bench, progress: Progress, *, committed: bool) -> dict[str, Any]:
    parts, recording = bench.parts, bench.recording
    plan = None
    if committed:
        record = recording.record(progress.step + 1)
        progress, plan = follow(bench, progress, record.lineage), decode_plan(record.plan)
    batch = recording.batch(progress.step + 1) if committed else recording.next_batch()
    ready = prepare_step(parts, progress, batch, plan)
    policy = parts.trainer.policy
    weights = {name: _norm(tensor) for name, tensor in policy.masters.items()}
    broken = broken_weights(policy)
    seen = _compute(parts.trainer, ready)
    places = describe_samples(parts, batch, ready.work)
    tokens = [seen.work.tokens(key) for key, _ in places]
    return {
        "samples": [
            {"place": place, **line, **describe_tokens(tokens[place])}
            for place, (_, line) in enumerate(places)
        ],
        "parameters": [
            {"name": name, "gradient_norm": norm, "weight_norm": weights[name]}
            for name, norm in seen.gradients.items()
        ],
        "metrics": seen.metrics,
        "not_finite": [
            *broken,
            *broken_tokens(tokens, "actor_logprobs_C", "actor logprobs"),
            *seen.outputs,
            *broken_tokens(tokens, "logprobs_C", "learner logprobs"),
            *seen.broken,
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A step's losses and gradients (norms by parameter), and which outputs, terms, gradients are broken."""

    work: Observed
    metrics: dict[str, Any]
    gradients: dict[str, float]
    outputs: list[str]
    broken: list[str]


def _compute(trainer: Trainer, ready: PreparedBatch) -> Seen:
    """All gradients of a step, the last one not applied; ends early at one that is not finite."""
    policy, work, totals = trainer.policy, Observed(ready.work), Totals()
    norms: list[float] = []
    gradients = dict.fromkeys(policy.masters, 0.0)
    with watched_outputs(policy.model) as outputs:
        for norm in iterate_gradients(trainer, work, ready.plan, totals, ready.step):
            norms.append(float(norm))
            gradients = {name: _larger(gradients[name], new) for name, new in _gradients(policy)}
            if len(norms) == len(ready.plan.updates) or not math.isfinite(norms[-1]):
                break
    return Seen(
        work=work,
        metrics=describe_step(trainer, work, totals, norms, ready.step),
        gradients=gradients,
        outputs=outputs,
        broken=[
            *broken_losses(totals),
            *(f"gradient of {name}" for name in policy.broken_gradients()),
        ],
    )


def _gradients(policy: Policy) -> Iterator[tuple[str, float]]:
    for name, master in policy.masters.items():
        yield name, 0.0 if master.grad is None else _norm(master.grad)


def _larger(known: float, new: float) -> float:
    return new if math.isnan(new) else max(known, new)


def _norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(whole(tensor.detach())))
