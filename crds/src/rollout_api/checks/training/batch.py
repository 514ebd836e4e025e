"""Batch arithmetic: what one step consumes must divide over mini-batches and ranks."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_api.checks.facts import Facts
from rollout_api.problems import Problem
from rollout_api.v1alpha1.run import RolloutRunSpec


def samples_per_step(spec: RolloutRunSpec) -> int:
    """Completions (or rows) that one step consumes; 0 when the run does not train."""
    if spec.train is None:
        return 0
    algorithm = spec.train.algorithm
    return algorithm.items_per_step * algorithm.num_samples


def mini_batches_divide(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Mini-batches must hold whole groups, all of one size: denominators are known beforehand."""
    online = _online(spec)
    if online is None:
        return
    name, prompts, mini_batches = online
    if prompts % mini_batches:
        yield Problem(
            field=f"spec.train.algorithm.{name}.miniBatches",
            reason="BatchNotDivisible",
            message=f"{prompts} prompts do not divide into {mini_batches} mini-batches",
            fix=f"use a divisor of promptsPerStep={prompts}: {_divisors(prompts)}",
        )


def ranks_divide(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Each rank must get the same number of samples of each mini-batch."""
    if spec.train is None:
        return
    ranks, online = max(1, spec.learner.num_shares), _online(spec)
    size = samples_per_step(spec) // (online[2] if online else 1)
    if size % ranks:
        batch_field = f"{online[0]}.promptsPerStep" if online else "batchSize"
        yield Problem(
            field="spec.learner.processesPerNode",
            reason="BatchNotDivisible",
            message=f"{size} samples of a mini-batch do not divide over {ranks} ranks, or groups of those that share sequences",
            fix=f"make {batch_field} (x groupSize / miniBatches) a multiple of {ranks}, or change the ranks",
        )


def micro_batch_holds_a_sequence(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """A micro-batch that is smaller than the longest sequence could never be filled.

    A sequence that the model's context cannot hold either is refused for that alone (`checks/model.py`).
    """
    if spec.train is None:
        return
    needed = _longest_sequence(spec, facts)
    if needed <= spec.train.micro_batch_tokens:
        return
    if facts.model is not None and needed > facts.model.context_length:
        return
    length = "sampling.maxNewTokens" if spec.train.algorithm.is_online else "maxLength"
    yield Problem(
        field="spec.train.microBatchTokens",
        reason="MicroBatchTooSmall",
        message=f"{spec.train.micro_batch_tokens} tokens cannot hold one sequence of {needed}, which {length} allows",
        fix=f"shorten {length}, or raise microBatchTokens to {needed} or more where model and devices hold that",
    )


def run_has_an_end(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """A run needs maxSteps, or epochs over data that end."""
    train = spec.train
    if train is None or train.max_steps or train.epochs or train.data:
        return
    yield Problem(
        field="spec.train.maxSteps",
        reason="NoEnd",
        message="the environment makes data without end, and neither maxSteps nor epochs is set",
        fix="set train.maxSteps",
    )


def data_fills_a_step(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """With tailBatch Drop, data smaller than one step would train nothing at all; maxSteps repeats them."""
    train = spec.train
    if train is not None and train.max_steps is not None and train.epochs is None:
        return
    rows = facts.data.num_rows if facts.data else None
    if train is None or train.data is None or rows is None or train.data.tail_batch != "Drop":
        return
    online = _online(spec)
    needed = online[1] if online else samples_per_step(spec)
    if rows < needed:
        yield Problem(
            field="spec.train.data.tailBatch",
            reason="DataTooSmall",
            message=f"the data has {rows} rows, one step takes {needed}, and tailBatch Drop drops them",
            fix="use a smaller step, more data, or tailBatch: Short",
        )


def _online(spec: RolloutRunSpec) -> tuple[str, int, int] | None:
    algorithm = spec.train.algorithm if spec.train else None
    if algorithm is None or not algorithm.is_online:
        return None
    settings = algorithm.value
    return algorithm.chosen, settings.prompts_per_step, settings.mini_batches


def _longest_sequence(spec: RolloutRunSpec, facts: Facts) -> int:
    train = spec.train
    assert train is not None
    if not train.algorithm.is_online:
        return int(train.algorithm.value.max_length)
    prompt = facts.data.prompt_tokens_max if facts.data else None
    return (train.max_prompt_tokens or prompt or 1) + (train.sampling.max_new_tokens or 1)


def _divisors(number: int, most: int = 12) -> str:
    found = [str(d) for d in range(1, number + 1) if number % d == 0]
    return ", ".join(found[:most]) + (", ..." if len(found) > most else "")


RULES = (
    mini_batches_divide,
    ranks_divide,
    micro_batch_holds_a_sequence,
    run_has_an_end,
    data_fills_a_step,
)
