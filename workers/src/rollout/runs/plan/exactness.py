"""What Exact costs a run's sampling, by the shape of its steps, and what would be had in Fast."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout.engines.batching import (
    NEW_TOKENS_MAX,
    candidate_widths,
    fixed_rows,
    is_compact,
    plan_batch_groups,
)
from rollout.engines.sizes import VLLM_SEQUENCES
from rollout_api.v1alpha1.run import RolloutRunSpec

OFFER = "numerics.mode: Fast, which claims no equality, "


def exact_costs(spec: RolloutRunSpec, model_path: str | None) -> str | None:
    """A sentence on what Exact costs and Fast offers; None where it costs no sampling, or the model is not here."""
    train = spec.train
    if spec.numerics.mode != "Exact" or train is None or not train.algorithm.is_online:
        return None
    groups, samples = train.algorithm.items_per_step, train.algorithm.num_samples
    engine = spec.actors.chosen_engine
    if engine.vllm is not None:
        together = min(engine.vllm.max_num_seqs or VLLM_SEQUENCES, groups * samples)
        return _one_by_one("samples", groups * samples, together)
    if engine.embedded is None or model_path is None or not is_compact(_config(model_path)):
        return None
    most = engine.embedded.batch_groups or plan_batch_groups(samples, groups)
    if train.sampling.new_tokens_max > NEW_TOKENS_MAX:
        return _one_by_one("groups", groups, min(most, groups))
    return None if most == 1 else _in_slots(groups, samples, most)


def _one_by_one(what: str, count: int, together: int) -> str | None:
    if together == 1:
        return None
    return f"a step's {count} {what} are decoded one after the other; {OFFER}decodes up to {together} together"


def _in_slots(groups: int, samples: int, most: int) -> str | None:
    """Of a step whose groups one actor has. Some rows are empty, or a group has samples that wait for its last."""
    widths = candidate_widths(samples, most)
    whole, rest = divmod(groups, most)
    sizes = [most * samples] * whole + [rest * samples] * bool(rest)
    rows = sum(fixed_rows(size, widths) for size in sizes)
    empty = rows - groups * samples
    if groups == 1 or (samples == 1 and empty == 0):
        return None
    return (
        f"a step's {groups} groups of {samples} take {rows} rows of fixed slots, {empty} of them empty, and leave "
        f"them with their last sample; {OFFER}needs neither on a CPU"
    )


def _config(model_path: str) -> Mapping[str, Any]:
    return json.loads((Path(model_path) / "config.json").read_text())
