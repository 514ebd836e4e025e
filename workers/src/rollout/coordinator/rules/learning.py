"""Can this run learn at all? A group whose rewards are all equal has no advantage to follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

VARIANCE_MIN = 1e-6
"""Rewards of a group closer than this are all equal."""

STEPS = 5
"""So many steps in a row without any signal, and the run says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSignal:
    """Of one committed step: how many groups it had, how many with differing rewards, and the range."""

    num_groups: int
    num_informative: int
    reward_min: float
    reward_max: float


def observe_signal(groups: Sequence[Sequence[float]], *, pooled: bool = False) -> StepSignal | None:
    """What a step's rewards by group say; None when no group has two samples to compare.

    ``pooled`` compares all of a step's rewards with each other, for algorithms whose advantages do not
    come from siblings.
    """
    if pooled:
        groups = [[reward for rewards in groups for reward in rewards]]
    compared = [rewards for rewards in groups if len(rewards) > 1]
    if not compared:
        return None
    return StepSignal(
        num_groups=len(compared),
        num_informative=sum(max(r) - min(r) > VARIANCE_MIN for r in compared),
        reward_min=min(map(min, compared)),
        reward_max=max(map(max, compared)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Whether there is a signal, in the words of the ``Learning`` condition."""

    signal: bool
    message: str


def judge_learning(recent: Sequence[StepSignal]) -> Learning:
    """From the last steps, oldest first: no signal when the last ``STEPS`` all had none."""
    last = recent[-STEPS:]
    if len(last) < STEPS or any(step.num_informative for step in last):
        return Learning(signal=True, message="groups with differing rewards arrive")
    low = min(step.reward_min for step in last)
    high = max(step.reward_max for step in last)
    whose = "all" if all(step.num_groups == 1 for step in last) else "every group's"
    message = f"in the last {STEPS} steps {whose} rewards were equal"
    if low == high:
        message += f" (always {low:g})"
    hint = (
        "the task is solved, or too easy"
        if low > 0
        else "check the reward function, the answer format, or start from a warmer model"
    )
    return Learning(signal=False, message=f"{message}: nothing to learn from; {hint}")
