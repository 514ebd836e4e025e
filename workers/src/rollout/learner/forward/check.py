"""Whether the forward that trains a model is the model's forward: asked once, when a run starts.

Three short sequences of the model's own tokens are scored packed, with a shared prompt, and by the plain
forward. What two plain forwards differ by when only their padding differs is the rounding of this model in
this number format; packed rows may differ from them by four times that. Deterministic: no random numbers are
drawn, none are used up.

Axes: C scored tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rollout.errors import RunFailed
from rollout.learner.forward.packed_rows import (
    GroupTokens,
    build_group_row,
    is_packed,
    token_logprobs,
)
from rollout.learner.forward.reference import plain_group_logprobs
from rollout.learner.model.parallel import Parallel, reshard

log = logging.getLogger(__name__)

ROUNDINGS = 4.0
"""Times the difference of two plain forwards that packed rows may differ by."""

LIMIT_MIN = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Nats; two plain forwards of a small model may be equal to the bit."""

PADDING = 16
WINDOW_MAX = 64
"""Windows up to this are outgrown by the sequences of the check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCheck:
    """Largest difference between packed and plain logprobs in nats, and what it may be."""

    gap_nats: float
    limit_nats: float

    @property
    def passes(self) -> bool:
        """Whether packed rows are this model's forward; not where a logprob is no number."""
        return self.gap_nats <= self.limit_nats


def check_forward(model: nn.Module, dtype: torch.dtype, parallel: Parallel) -> ForwardCheck | None:
    """Compare, on every rank, and decide together; None for a model that computes rows plainly.

    Raises RunFailed on every rank when packed rows are not the model's forward.
    """
    if not is_packed(model):
        return None
    with torch.no_grad():
        found = _gaps(model, dtype, parallel.device)
    if parallel.sharded:
        reshard(model)
    parallel.maximum(found)
    check = ForwardCheck(gap_nats=float(found[0]), limit_nats=float(found[1]))
    log.info("forward checked gap=%.3g limit=%.3g", check.gap_nats, check.limit_nats)
    if not check.passes:
        raise RunFailed(
            f"packed rows of this model ({model.config.model_type}) are not its own forward: "  # pyrefly: ignore - transformers' models have one
            f"log-probabilities differ by {check.gap_nats:.3g} nats, expected at most "
            f"{check.limit_nats:.3g}; nothing was trained. Take a model type that docs/reference/models.md "
            "calls right, or report this one"
        )
    return check


def _gaps(model: nn.Module, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    groups = _groups(model)
    packed_C = token_logprobs(model, build_group_row(groups).to(device)).logprobs_C
    plain_C = plain_group_logprobs(model, groups).logprobs_C
    padded_C = plain_group_logprobs(model, groups, padding=PADDING).logprobs_C
    limit = (ROUNDINGS * _difference(padded_C, plain_C)).clamp(min=LIMIT_MIN[dtype])
    return torch.stack((_difference(packed_C, plain_C), limit.nan_to_num(posinf=0.0)))


def _difference(logprobs_C: torch.Tensor, plain_C: torch.Tensor) -> torch.Tensor:
    """The largest in nats, infinite where one of them is no number; what plain gives no number for is not compared.

    A model whose own forward is broken is named, tensor by tensor, by the first step.
    """
    gaps_C = (logprobs_C - plain_C).abs().nan_to_num(nan=torch.inf)
    return gaps_C.where(plain_C.isfinite(), 0.0).max()


def _groups(model: nn.Module) -> Sequence[GroupTokens]:
    config: Any = model.config
    window = getattr(config, "sliding_window", None) or 0
    longer = window + 4 if window <= WINDOW_MAX else 0

    def ids(seed: int, count: int) -> tuple[int, ...]:
        return tuple((seed + 7919 * place) % config.vocab_size for place in range(1, count + 1))

    return (
        GroupTokens(prompt_ids=ids(1, 9), completion_ids=(ids(2, 8 + longer), ids(3, 6))),
        GroupTokens(prompt_ids=ids(4, 5), completion_ids=(ids(5, 7),)),
    )
