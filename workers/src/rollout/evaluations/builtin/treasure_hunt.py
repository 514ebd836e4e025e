"""``treasure-hunt``: the environment's own held-out worlds; correct where the chest was opened."""

from __future__ import annotations

from collections.abc import Mapping

from rollout.common.parameters import parse_parameters
from rollout.environments.treasure_hunt import TreasureHunt, TreasureHuntBuilder
from rollout.evaluations.suites import Context, Suite
from rollout.rewards.source import RewardSource


def build_treasure_hunt(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """The held-out worlds of the training's houses, or of those given."""
    merged = {**context.environment, **given}
    builder = TreasureHuntBuilder(
        parameters=parse_parameters(f"suite {name}", TreasureHunt, merged),
    )
    return Suite(
        name=name,
        split=context.split,
        environment=lambda: builder,
        rewards=(RewardSource(name="environment", builtin="environment"),),
        source=lambda: builder.source(context.split, context.seed),
    )
