"""What a fork changes of the settings of the run that it begins from: population based training (Jaderberg 2017, section 4).

Only what a run that begins with another's snapshot may change is explored; all else stays as the winner has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollout_api.sweeps.points import DIGITS, Values, chance
from rollout_api.sweeps.settable import find_settable
from rollout_api.v1alpha1.sweep import SweepParameter

EXPLORED = (
    "train.optimizer",
    "train.algorithm",
    "train.rewards",
    "train.oldLogprobs",
    "train.importanceSampling",
    "train.maxStaleness",
)
"""What a run may have otherwise than the one whose snapshot it begins with; and all below."""
SIZES = frozenset({"promptsPerStep", "groupSize", "samplesPerPrompt", "batchSize", "tailBatch"})
"""Of an algorithm: open groups and the place in the data are counted in them."""
FACTORS = (0.8, 1.25)


def is_explored(field: str) -> bool:
    """Whether a fork takes another value of a field."""
    below = any(f"{field}.".startswith((f"{one}.", f"{one}[")) for one in EXPLORED)
    return below and field.rpartition(".")[2] not in SIZES


def explore(parameters: Sequence[SweepParameter], values: Values, name: str) -> Values:
    """The settings of the fork of this name: of each explored parameter the value beside the winner's, or 0.8 or 1.25 times it.

    The same name always goes the same way.
    """
    pairs = zip(parameters, values, strict=True)
    return tuple(
        _beside(one, text, up=_goes_up(name, one.field)) if is_explored(one.field) else text
        for one, text in pairs
    )


def explore_listed(field: str, texts: Values, text: str, name: str) -> str:
    """What ``explore`` makes of one field with these values, for runners of sweeps whose fields are no ``SweepParameter``."""
    return _neighbour(texts, text, up=_goes_up(name, field)) if is_explored(field) else text


def _goes_up(name: str, field: str) -> bool:
    return chance("fork", name, field) >= 0.5


def _beside(parameter: SweepParameter, text: str, *, up: bool) -> str:
    if parameter.values is not None:
        return _neighbour(parameter.values, text, up=up)
    assert parameter.range is not None
    low, high = parameter.range.low, parameter.range.high
    before = float(text)
    found = min(max(before * FACTORS[up], low), high)
    if find_settable(parameter.field).form != "Integer":
        return f"{found:.{DIGITS}g}"
    whole = round(found)
    moved = whole if whole != int(before) else whole + (1 if up else -1)
    return str(int(min(max(moved, low), high)))


def _neighbour(values: Values, text: str, *, up: bool) -> str:
    """The next value in the order that they are written in; at an end the other way."""
    if text not in values or len(values) == 1:
        return text
    place = values.index(text) + (1 if up else -1)
    if not 0 <= place < len(values):
        place = values.index(text) + (-1 if up else 1)
    return values[place]
