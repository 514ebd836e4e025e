"""``arithmetic``: the environment's own held-out problems, answers compared exactly."""

from __future__ import annotations

from collections.abc import Mapping

from rollout.common.parameters import parse_parameters
from rollout.environments.arithmetic import Arithmetic, ArithmeticBuilder
from rollout.evaluations.suites import Context, Suite
from rollout.rewards.source import RewardSource


def build_arithmetic(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """The held-out problems of the training's difficulty, or of the one given."""
    merged = {**context.environment, **given}
    builder = ArithmeticBuilder(
        parameters=parse_parameters(f"suite {name}", Arithmetic, merged),
    )
    return Suite(
        name=name,
        split=context.split,
        environment=lambda: builder,
        rewards=(RewardSource(name="exact-match", builtin="exact-match"),),
        source=lambda: builder.source(context.split, context.seed),
    )
