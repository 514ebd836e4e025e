"""The combinations of a sweep, always the same ones in the same order: what is run is found again by its place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from rollout_api.sweeps.settable import find_settable
from rollout_api.v1alpha1.sweep import (
    RUNS_MAX,
    VALUES_MAX,
    ParameterRange,
    SweepParameter,
    SweepSpec,
)

Values = tuple[str, ...]
"""One text for each parameter, in the order of the spec."""
TRIES = 20
"""Draws for each combination that is wanted: those that were drawn before do not count."""
DIGITS = 6
"""Figures of a number that is drawn."""


class TooFew(ValueError):  # noqa: N818 - an answer, by its name
    """There are not so many combinations as are to be drawn."""


def plan_points(spec: SweepSpec) -> tuple[Values, ...]:
    """Every combination, at most ``RUNS_MAX``. Raises TooFew; NotSettable for a parameter that is none."""
    random = spec.search.random if spec.search is not None else None
    if random is None:
        return tuple(itertools.islice(itertools.product(*_lists(spec)), RUNS_MAX))
    if (there := _num_listed(spec)) is not None and there < random.samples:
        raise TooFew(f"{random.samples} combinations are to be drawn, and there are {there}")
    drawn: dict[Values, None] = {}
    for number in range(random.samples * TRIES):
        drawn.setdefault(_draw(spec.parameters, random.seed, number))
        if len(drawn) == random.samples:
            return tuple(drawn)
    raise TooFew(f"{random.samples} combinations are to be drawn, and {len(drawn)} were found")


def count_points(spec: SweepSpec) -> int:
    """How many runs a sweep comes to, which may be more than it may have."""
    random = spec.search.random if spec.search is not None else None
    if random is not None:
        return random.samples
    return _num_listed(spec) or 0


def pick_points(spec: SweepSpec) -> tuple[Values, ...]:
    """Some combinations, in which every value stands once; where they are drawn, the first of them."""
    if spec.search is not None and spec.search.random is not None:
        return plan_points(spec)[:VALUES_MAX]
    lists = _lists(spec)
    most = max(map(len, lists))
    return tuple(tuple(one[at % len(one)] for one in lists) for at in range(most))


def chance(*words: str | int) -> float:
    """A number from 0 to below 1 that these words always give."""
    text = "\x1f".join(map(str, words)).encode()
    return int.from_bytes(blake2b(text, digest_size=7).digest()) / 2**56


def _num_listed(spec: SweepSpec) -> int | None:
    """How many combinations there are; None where one is drawn between bounds."""
    if any(one.values is None for one in spec.parameters):
        return None
    return math.prod(len(one) for one in _lists(spec))


def _lists(spec: SweepSpec) -> list[Values]:
    return [one.values or () for one in spec.parameters]


def _draw(parameters: Sequence[SweepParameter], seed: int, number: int) -> Values:
    return tuple(_value(one, chance("sweep", seed, number, one.field)) for one in parameters)


def _value(parameter: SweepParameter, share: float) -> str:
    if parameter.values is not None:
        return parameter.values[int(share * len(parameter.values))]
    assert parameter.range is not None
    form = find_settable(parameter.field).form
    return _whole(parameter.range, share) if form == "Integer" else _real(parameter.range, share)


def _real(bounds: ParameterRange, share: float) -> str:
    return f"{_between(bounds.low, bounds.high, bounds.scale, share):.{DIGITS}g}"


def _whole(bounds: ParameterRange, share: float) -> str:
    """Each whole number alike (on a scale of Log: in its order of magnitude)."""
    low, high = math.ceil(bounds.low), math.floor(bounds.high)
    found = math.floor(_between(low, high + 1, bounds.scale, share))
    return str(min(max(found, low), high))


def _between(low: float, high: float, scale: str, share: float) -> float:
    if scale == "Log":
        return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return low + share * (high - low)


def texts_of(values: Values, parameters: Sequence[SweepParameter]) -> Iterator[str]:
    """``field=value`` of each parameter, for people."""
    yield from (f"{one.field}={text}" for one, text in zip(parameters, values, strict=True))
