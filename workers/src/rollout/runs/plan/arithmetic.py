"""The sums a person checks before paying for a run: what a step holds, how often it updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rollout_api.checks.training.batch import samples_per_step
from rollout_api.checks.training.preferences import ipo_target
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.preferences import Ipo

BODY_BYTES_PER_TOKEN = 12
"""Of a stored trajectory: 8 to 11 were measured from 1,000 tokens on; text with few words takes less."""

BODY_BYTES_PER_SAMPLE = 512
"""What does not grow with the completion, the prompt left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """What samples of a mixture of experts tell besides: bytes of each token, those of the prompt too."""

    token_bytes: int
    prompt_tokens_max: int


def batch_arithmetic(
    spec: RolloutRunSpec, num_rows: int | None, routes: Routes | None = None
) -> dict[str, Any]:
    """Counts per step and per run; None where the data's length is not known."""
    train = spec.train
    if spec.serve is not None:
        return _service_arithmetic(spec)
    if train is None:
        return {}
    algorithm = train.algorithm.value
    online = train.algorithm.is_online
    samples = samples_per_step(spec)
    prompts = train.algorithm.items_per_step
    mini_batches = algorithm.mini_batches if online else 1
    steps = train.max_steps or _steps_of_epochs(spec, num_rows, prompts)
    updates = mini_batches * (algorithm.epochs if online else 1)
    return {
        "promptsPerStep": prompts,
        "samplesPerStep": samples,
        "samplesPerUpdate": samples // mini_batches,
        "samplesPerRankAndUpdate": samples // mini_batches // max(1, spec.learner.num_shares),
        "updatesPerStep": updates,
        "stepsPerEpoch": steps_per_epoch(spec, num_rows, prompts),
        "steps": steps,
        "newTokensPerStepMax": samples * train.sampling.new_tokens_max if online else None,
        **(_ledger_arithmetic(spec, samples, steps, routes) if online else {}),
        "targetMargin": _target_margin(train.algorithm.ipo),
    }


def _service_arithmetic(spec: RolloutRunSpec) -> dict[str, Any]:
    """What a service takes of a machine or a pod, and what it offers."""
    assert spec.serve is not None
    ledger = spec.storage.ledger if spec.storage else None
    return {
        "clientsCallTheBase": spec.serve.model_name or spec.model.uri,
        "threads": spec.learner.service_threads,
        "keys": ", ".join(one.name for one in spec.serve.api_keys) or "those of this machine",
        "volumeInACluster": ledger.sqlite.size if ledger and ledger.sqlite else "10Gi",
    }


def _ledger_arithmetic(
    spec: RolloutRunSpec, samples: int, steps: int | None, routes: Routes | None
) -> dict[str, Any]:
    """Bytes of trajectories in the ledger, were every completion as long as it may be; None without an end."""
    assert spec.train is not None
    tokens = spec.train.sampling.new_tokens_max
    each = BODY_BYTES_PER_TOKEN * tokens + BODY_BYTES_PER_SAMPLE
    if routes is not None:
        each += routes.token_bytes * (routes.prompt_tokens_max + tokens)
    kept = _steps_kept(spec, steps)
    return {
        **({} if routes is None else {"routeBytesPerToken": routes.token_bytes}),
        "trajectoryStepsKept": kept,
        "trajectoryBytesPerStepMax": samples * each,
        "trajectoryBytesMax": None if kept is None else kept * samples * each,
    }


def _steps_kept(spec: RolloutRunSpec, steps: int | None) -> int | None:
    """Steps whose trajectories the ledger holds at a time; those that wait are of later ones."""
    behind = spec.storage.bodies_behind if spec.storage else None
    if behind is None or spec.train is None:
        return steps
    replayed = spec.snapshots.max_replay_steps
    apart = min(spec.snapshots.every_steps, replayed)
    late = min(apart, replayed - apart)  # an anchor is written while steps are taken
    window = behind + spec.snapshots.keep_last * apart + late + spec.train.max_staleness + 1
    return window if steps is None else min(steps, window)


def _target_margin(ipo: Ipo | None) -> str | None:
    """What ipo pulls the margin of each pair to."""
    if ipo is None:
        return None
    unit = "nats per token" if ipo.aggregation == "TokenMean" else "nats per answer"
    return f"{ipo_target(ipo):g} {unit}"


def steps_per_epoch(spec: RolloutRunSpec, num_rows: int | None, prompts: int) -> int | None:
    """Steps that one pass over the data gives, by the rule of ``tailBatch``."""
    if num_rows is None or spec.train is None:
        return None
    data = spec.train.data
    short = data is not None and data.tail_batch == "Short"
    return math.ceil(num_rows / prompts) if short else num_rows // prompts


def _steps_of_epochs(spec: RolloutRunSpec, num_rows: int | None, prompts: int) -> int | None:
    assert spec.train is not None
    each = steps_per_epoch(spec, num_rows, prompts)
    return None if each is None else each * (spec.train.epochs or 1)
