"""How the values of several rewards become one: weights, bounds on what each adds, and gates. Pure.

A completion's reward is the sum over the sources, each times its weight and within its bounds. The first gate in the
order of the manifest that its value does not reach settles it: on the stated total, or on the gate's own part alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rollout.errors import RewardError
from rollout.rewards.source import RewardSource


def contribution(source: RewardSource, value: float) -> float:
    """What a source adds with this value. Raises RewardError where that is beyond every float."""
    added = source.weight * value
    if source.at_most is not None:
        added = min(added, source.at_most)
    if source.at_least is not None:
        added = max(added, source.at_least)
    if not math.isfinite(added):
        raise RewardError(
            f"reward {source.name!r} ({source.origin}): {value!r} times its weight {source.weight:g} is beyond what a number"
            " can hold; bound it with atMost and atLeast"
        )
    return added


def passes(source: RewardSource, value: float) -> bool:
    """Whether the others count beside this value."""
    return source.gate is None or value >= source.gate.at_least


def settled_total(source: RewardSource, value: float) -> float:
    """The whole reward where the gate of ``source`` is not passed."""
    assert source.gate is not None
    if source.gate.else_total is not None:
        return source.gate.else_total
    return contribution(source, value)


def total(sources: Sequence[RewardSource], values: Mapping[str, float]) -> float:
    """The reward of one completion; ``values`` by source, of those that were asked. Raises RewardError."""
    found = 0.0
    for source in sources:
        if source.name not in values:
            continue
        value = values[source.name]
        if not passes(source, value):
            return settled_total(source, value)
        found += contribution(source, value)
    return found
