"""Whether the numbers of a sample are ones that a learner can use: looked at before anything is kept of it.

JSON and msgpack carry NaN, infinities and integers of any size. Kept, one of them ends the step that consumes
its group, at every try.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

from rollout.turns import further_rows
from rollout.types import Branch, Prefix, Trajectory, VersionSpan

T = TypeVar("T")

TOKEN_ID_MAX = 2**31 - 1
COUNT_MAX = 2**53
LOGPROB_MAX = 1e6
"""Nats; a learner computes in float32 and exponentiates differences."""
REWARD_MAX = 3e38
"""The largest float32, nearly."""
NAMES_MAX = 256
"""Rewards, timings and costs of one sample, of each."""


def find_wrong_numbers(made: Sequence[Trajectory]) -> str:
    """What is wrong with the first bad trajectory; empty when nothing is. Bad is rare: see ``are_usable``."""
    return next(filter(None, map(check_numbers, made)), "")


def are_usable(made: Sequence[Trajectory]) -> bool:
    """Whether nothing is wrong with any of them: all numbers of a kind are looked at as one."""
    if not made:
        return True
    maps = [of for one in made for of in (one.rewards, one.timings, one.costs)]
    rows = [*made, *further_rows(made)]
    return (
        _are_tokens(_flatten([one.token_ids for one in rows]))
        and _are_tokens(_flatten([one.prompt_ids for one in rows]))
        and _within(_flatten([one.actor_logprobs for one in rows]), LOGPROB_MAX)
        and all(map({0, 1}.issuperset, [one.loss_mask for one in rows]))
        and _are_counts([n for one in made for n in (one.ordinal, one.sample)])
        and _are_counts(_span_numbers(_flatten([one.spans for one in rows])))
        and max(map(len, maps)) <= NAMES_MAX
        and _within(_flatten([one.values() for one in maps]), REWARD_MAX)
        and _within([one.reward for one in made], REWARD_MAX)
    )


def check_numbers(made: Trajectory) -> str:
    """What is wrong with the numbers of a trajectory; empty when nothing is."""
    if wrong := next(filter(None, map(_check_row, made.rows)), ""):
        return f"sample {made.sample}: {wrong}"
    spans = _flatten(row.spans for row in made.rows)
    if not _are_counts((made.ordinal, made.sample, *_span_numbers(spans))):
        return f"sample {made.sample}: ordinal, sample or spans are out of range"
    if max(len(made.rewards), len(made.timings), len(made.costs)) > NAMES_MAX:
        return f"sample {made.sample}: more than {NAMES_MAX} rewards, timings or costs"
    if not _within((made.reward, *made.rewards.values()), REWARD_MAX):
        return f"sample {made.sample}: reward is not a finite number"
    if not _within((*made.timings.values(), *made.costs.values()), REWARD_MAX):
        return f"sample {made.sample}: a timing or a cost is not a finite number"
    return ""


def _check_row(row: Trajectory | Branch) -> str:
    wrong = _check_tokens(row.token_ids, row.actor_logprobs, row.loss_mask, "actor_logprobs")
    if not wrong and not _are_tokens(row.prompt_ids):
        wrong = "prompt_ids hold what is no token id"
    return wrong


def check_prefix_numbers(made: Prefix) -> str:
    """What is wrong with the numbers of a beginning; empty when nothing is."""
    wrong = _check_tokens(made.token_ids, made.logprobs, made.loss_mask, "logprobs")
    if not wrong and not _are_tokens(made.prompt_ids):
        wrong = "prompt_ids hold what is no token id"
    numbers = (made.sample, made.segment, *made.turn_ends, *_span_numbers(made.spans))
    if not wrong and not _are_counts(numbers):
        wrong = "sample, segment, turn_ends or spans are out of range"
    return f"beginning of sample {made.sample}: {wrong}" if wrong else ""


def _check_tokens(
    ids: Sequence[int], logprobs: Sequence[float], mask: Sequence[int], what: str
) -> str:
    if not _within(logprobs, LOGPROB_MAX):
        at = next(n for n, one in enumerate(logprobs) if not abs(one) <= LOGPROB_MAX)
        return f"{what}[{at}] is {logprobs[at]}, not a finite log-probability"
    if not _are_tokens(ids):
        return "token_ids hold what is no token id"
    return "" if {0, 1}.issuperset(mask) else "loss_mask holds other numbers than 0 and 1"


def _are_tokens(ids: Sequence[int]) -> bool:
    return not ids or (min(ids) >= 0 and max(ids) <= TOKEN_ID_MAX)


def _are_counts(numbers: Sequence[int]) -> bool:
    return not numbers or (min(numbers) >= 0 and max(numbers) <= COUNT_MAX)


def _flatten(parts: Iterable[Iterable[T]]) -> list[T]:
    return list(itertools.chain.from_iterable(parts))


def _span_numbers(spans: Iterable[VersionSpan]) -> list[int]:
    return [n for span in spans for n in (span.start, span.end, span.lineage, span.step)]


def _within(values: Collection[float], bound: float) -> bool:
    # min and max may pass over a NaN; a sum keeps it, and is finite where every value is within a bound.
    return not values or (
        max(values) <= bound and min(values) >= -bound and math.isfinite(sum(values))
    )
