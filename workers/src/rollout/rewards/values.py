"""What a source returned, checked: one finite number, or named ones, for each completion.

Named values that begin with ``cost/`` say what an answer cost (tokens, a price): they are counted, and never reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import msgspec

from rollout.errors import RewardError
from rollout.rewards.frames import COST
from rollout.rewards.host import describe_row
from rollout.rewards.source import RewardSource
from rollout.types import Row

COST_MAX = 1e15
"""Of one completion: what is said to cost more is no cost."""
NAMED_MAX = 64
"""Named values of one source for one completion."""


class Valued(msgspec.Struct, frozen=True, kw_only=True):
    """``values`` under the source's name, named ones also as ``source/name``; ``costs`` by name, without a prefix."""

    values: dict[str, float]
    costs: dict[str, float] = {}


def check_values(source: RewardSource, given: Any, rows: Sequence[Row]) -> list[Valued]:
    """The values of each completion.

    The value of a source that returns named floats is their sum, or the one that counts. Raises RewardError.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise _bad(source, f"returned {type(given).__name__}, not a list with one number each")
    if len(given) != len(rows):
        what = "the samples of one group" if source.per_group else "completions"
        raise _bad(source, f"returned {len(given)} values for {len(rows)} {what}")
    return [
        check_value(source, value, row, i)
        for i, (value, row) in enumerate(zip(given, rows, strict=True))
    ]


def check_value(source: RewardSource, value: Any, row: Row, index: int) -> Valued:
    """Those of one completion, the ``index``-th of its batch. Raises RewardError."""
    if type(value) is float and math.isfinite(value):  # what nearly all are
        return Valued(values={source.name: value})
    if not isinstance(value, Mapping):
        return Valued(values={source.name: _number(source, value, row, index)})
    if len(value) > NAMED_MAX:
        where = f"row {index}, {describe_row(row)}"
        raise _bad(
            source, f"returned {len(value)} named values for {where}, of {NAMED_MAX} at most"
        )
    costs = {
        str(key).removeprefix(COST): _cost(source, v, row, index)
        for key, v in value.items()
        if str(key).startswith(COST)
    }
    named = {
        f"{source.name}/{key}": _number(source, v, row, index)
        for key, v in value.items()
        if not str(key).startswith(COST)
    }
    if not named:
        raise _bad(source, f"returned no named value for row {index}, {describe_row(row)}")
    return Valued(values={source.name: _counted(source, named), **named}, costs=costs)


def _counted(source: RewardSource, named: Mapping[str, float]) -> float:
    if source.counts is None:
        return sum(named.values())
    wanted = f"{source.name}/{source.counts}"
    if wanted not in named:
        raise _bad(source, f"returned no value {source.counts!r}, which is its reward")
    return named[wanted]


def _number(source: RewardSource, value: Any, row: Row, index: int) -> float:
    if _is_finite(value):
        return float(value)
    where = f"row {index}, {describe_row(row)}"
    raise _bad(source, f"returned {value!r:.60} for {where}; expected a finite number")


def _cost(source: RewardSource, value: Any, row: Row, index: int) -> float:
    if _is_finite(value) and 0 <= value <= COST_MAX:
        return float(value)
    where = f"row {index}, {describe_row(row)}"
    raise _bad(source, f"said a cost of {value!r:.60} for {where}; expected 0 to {COST_MAX:g}")


def _is_finite(value: Any) -> bool:
    if type(value) is float:  # most are, and an abstract class takes its time to look
        return math.isfinite(value)
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _bad(source: RewardSource, problem: str) -> RewardError:
    return RewardError(
        f"reward {source.name!r} ({source.origin}) {problem}. Correct the function: it takes "
        f"(prompts, completions, rows) and returns one float, or named floats, per completion."
    )
