"""The samples of a call are looked at as one first: what one of them holds is never hidden by the others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rollout.coordinator.rules.numbers import (
    NAMES_MAX,
    are_usable,
    check_numbers,
    find_wrong_numbers,
)
from rollout.types import Trajectory, VersionSpan

GOOD = Trajectory(
    ordinal=1,
    sample=0,
    prompt_ids=(1, 2),
    token_ids=(3, 4),
    actor_logprobs=(-0.5, -0.25),
    loss_mask=(1, 0),
    spans=(VersionSpan(start=0, end=2, lineage=0, step=3),),
    rewards={"exact-match": 1.0},
    reward=1.0,
    ending="stop",
    timings={"generate": 0.5},
)
BAD = [
    *({"actor_logprobs": (-0.5, n)} for n in (math.nan, math.inf, -math.inf, 1.1e6, -1.1e6)),
    *({"reward": n} for n in (math.nan, math.inf, -math.inf, 3.1e38, -1e308)),
    *({"rewards": {"a": 1.0, "b": n}} for n in (math.nan, math.inf, -math.inf, 1e308)),
    *({"timings": {"a": n}} for n in (math.nan, math.inf, -math.inf, -1e308)),
    *({name: (1, n)} for name in ("token_ids", "prompt_ids") for n in (-1, 2**31, 2**80)),
    *({"loss_mask": (1, n)} for n in (-1, 2)),
    *({name: n} for name in ("ordinal", "sample") for n in (-1, 2**53 + 1)),
    {"spans": (replace(GOOD.spans[0], step=-1),)},
    {"spans": (replace(GOOD.spans[0], end=2**80),)},
    {"rewards": dict.fromkeys(map(str, range(NAMES_MAX + 1)), 0.0)},
]


@pytest.mark.parametrize("change", BAD, ids=range(len(BAD)))
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_bad_number_is_found_and_named_wherever_its_sample_stands(change: dict, at: int) -> None:
    made = [GOOD] * 3
    made[at] = replace(GOOD, **change)

    wrong = find_wrong_numbers(made)

    assert not are_usable(made)
    assert wrong
    assert wrong == check_numbers(made[at])


@pytest.mark.parametrize("count", [0, 1, 8])
def test_good_numbers_are_good_in_any_count(count: int) -> None:
    assert are_usable([GOOD] * count)
    assert find_wrong_numbers([GOOD] * count) == ""
