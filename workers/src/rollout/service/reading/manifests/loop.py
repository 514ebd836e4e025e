"""What a recorded loop is made of, gathered in one pass over its calls; and how it is refused where it is none of ours."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rollout.errors import SpecError
from rollout.service.calls import ForwardBackward, LossAnswer, RefusedAnswer
from rollout.service.reading.finding import OpenedModel
from rollout.service.reading.steps import StepFold, TakenStep, read_calls
from rollout.service.reading.words import kind_name, plain_fields

VARIANTS_MAX = 64
"""Different settings of a step or a loss that are told apart; a loop with more is said to change them."""
SUPERVISED = "cross_entropy"
EXPRESSED = (
    "forward_backward",
    "optim_step",
    "save_weights_for_sampler",
    "save_state",
    "refused_call",
)
"""Kinds of calls that a manifest has, or that change nothing of what it says."""
POLICY = ("importance_sampling", "ppo", "cispo", "gspo")


class LoopRefused(SpecError):  # noqa: N818 - an answer, not a fault
    """A recorded loop that no manifest says; every reason is in the message."""


@dataclass(slots=True, kw_only=True)
class RecordedLoop:
    """Counts and numbers of a loop. ``rates`` are the learning rates step by step, eight bytes each."""

    losses: Counter[str] = field(default_factory=Counter)
    configs: Counter[tuple[tuple[str, Any], ...]] = field(default_factory=Counter)
    optimizers: Counter[tuple[tuple[str, Any], ...]] = field(default_factory=Counter)
    rates: array[float] = field(default_factory=lambda: array("d"))
    sequences_min: int = 0
    sequences_max: int = 0
    others: Counter[str] = field(default_factory=Counter)
    forward_only: int = 0
    refused: int = 0
    waiting: int = 0
    ungathered: int = 0

    @property
    def steps(self) -> int:
        """How many were taken."""
        return len(self.rates)

    def take_step(self, step: TakenStep) -> None:
        """The next step."""
        asked = plain_fields(step.asked)
        self.rates.append(asked.pop("learning_rate"))
        _count(self.optimizers, asked)
        known = self.sequences_min if self.steps > 1 else step.num_sequences
        self.sequences_min = min(known, step.num_sequences)
        self.sequences_max = max(self.sequences_max, step.num_sequences)


def record_loop(opened: OpenedModel) -> RecordedLoop:
    """Read the loop. Raises LedgerError, and LoopRefused where it is none that a manifest has."""
    loop, fold = RecordedLoop(), StepFold()
    for one in read_calls(opened.book, opened.model.id):
        step = fold.take(one)
        if kind_name(one.call) not in EXPRESSED:
            loop.others[kind_name(one.call)] += 1
        loop.waiting += one.answer is None
        loop.refused += isinstance(one.answer, RefusedAnswer)
        if step is not None:
            loop.take_step(step)
            loop.ungathered = 0
        if isinstance(one.call, ForwardBackward) and isinstance(one.answer, LossAnswer):
            loop.forward_only += not one.call.backward
            if one.call.backward:
                loop.losses[one.call.loss] += 1
                loop.ungathered += 1
                _count(loop.configs, one.call.config)
    _refuse_others(loop)
    return loop


def _count(counter: Counter[tuple[tuple[str, Any], ...]], values: dict[str, Any]) -> None:
    key = tuple(sorted(values.items()))
    if key in counter or len(counter) < VARIANTS_MAX:
        counter[key] += 1


def _refuse_others(loop: RecordedLoop) -> None:
    reasons: list[str] = []
    if not loop.steps:
        reasons.append("no step of the optimizer was taken")
    if len(loop.losses) > 1:
        counts = ", ".join(f"{count} calls of {name}" for name, count in loop.losses.items())
        reasons.append(f"a run has one algorithm, and the loop has {counts}")
    unknown = [name for name in loop.losses if name not in (SUPERVISED, *POLICY)]
    if unknown:
        reasons.append(f"no algorithm of a manifest has the loss {unknown[0]}")
    if reasons:
        raise LoopRefused(f"the loop is none that a manifest says: {'; '.join(reasons)}")
