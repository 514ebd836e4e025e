"""``arithmetic`` and ``treasure-hunt``: an environment's own held-out problems, scored as in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollout.common.parameters import parse_parameters
from rollout.environments.arithmetic import Arithmetic, ArithmeticBuilder
from rollout.environments.treasure_hunt import TreasureHunt, TreasureHuntBuilder
from rollout.evaluations.suites import Context, Suite
from rollout.rewards.source import RewardSource


def build_arithmetic(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """The held-out problems of the training's difficulty, or of the one given; answers are compared exactly."""
    return _build((Arithmetic, ArithmeticBuilder, "exact-match"), name, given, context)


def build_treasure_hunt(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """The held-out worlds of the training's houses, or of those given; correct where the chest was opened."""
    return _build((TreasureHunt, TreasureHuntBuilder, "environment"), name, given, context)


def _build(
    made_of: tuple[type[Any], Callable[..., Any], str],
    name: str,
    given: Mapping[str, str],
    context: Context,
) -> Suite:
    parameters, build, reward = made_of
    merged = {**context.environment, **given}
    builder = build(parameters=parse_parameters(f"suite {name}", parameters, merged))
    return Suite(
        name=name,
        split=context.split,
        environment=lambda: builder,
        rewards=(RewardSource(name=reward, builtin=reward),),
        source=lambda: builder.source(context.split, context.seed),
    )
