"""Asynchronous successive halving (Li 2020, section 3), as a rule that stops: who loses at which rung.

A run is held against all that have reached its own last rung, those included that were stopped there and those that
came later: who is told depends on what was seen, and not on who was looked at first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rollout_api.v1alpha1.sweep import SweepSpec

RUNGS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvingRule:
    """``factor``: of so many runs one goes on. ``min_runs``: as many have reached a rung before one is stopped there."""

    first_step: int
    factor: int
    min_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loser:
    """A run that is to be stopped: at this rung it was of this place, from 1, among so many, of which ``kept`` go on."""

    name: str
    step: int
    place: int
    num_runs: int
    kept: int

    def explain(self) -> str:
        """Why it is stopped, for people."""
        return f"at step {self.step} it was number {self.place} of {self.num_runs}, of which {self.kept} go on"


def halving_rule(spec: SweepSpec) -> HalvingRule | None:
    """The rule that losers are found by; None where every run goes to its end."""
    wanted = spec.early_stopping.halving if spec.early_stopping is not None else None
    if wanted is None:
        return None
    least = wanted.factor if wanted.min_runs is None else wanted.min_runs
    return HalvingRule(first_step=wanted.first_step, factor=wanted.factor, min_runs=least)


def rung_of(rule: HalvingRule, step: int) -> int | None:
    """The highest rung at or below a step; None below the first."""
    if step < rule.first_step:
        return None
    rung = rule.first_step
    for _ in range(RUNGS_MAX - 1):
        if rung * rule.factor > step:
            break
        rung *= rule.factor
    return rung


def find_losers(
    rule: HalvingRule, seen: Mapping[str, Mapping[int, float]], at_work: Iterable[str]
) -> tuple[Loser, ...]:
    """Of the runs ``at_work`` those that lose. ``seen``: of each run, over or not, its finite value at each rung that it reached.

    Runs of equal value share the better place, so that none is stopped for a tie.
    """
    losers = []
    for name in at_work:
        rungs = seen.get(name, {})
        if not rungs:
            continue
        step = max(rungs)
        values = [one[step] for one in seen.values() if step in one]
        loser = _judge(rule, name, step, rungs[step], values)
        losers += [] if loser is None else [loser]
    return tuple(losers)


def find_winner(
    seen: Mapping[str, Mapping[int, float]], at_work: Iterable[str], step: int
) -> str | None:
    """Of the runs ``at_work`` the one with the highest value at a rung; of equals the first, None where nobody is."""
    valued = [(seen[name][step], name) for name in at_work if step in seen.get(name, {})]
    return max(valued, key=lambda pair: pair[0])[1] if valued else None


def _judge(
    rule: HalvingRule, name: str, step: int, value: float, values: Sequence[float]
) -> Loser | None:
    if len(values) < rule.min_runs:
        return None
    kept = math.ceil(len(values) / rule.factor)
    place = 1 + sum(one > value for one in values)
    if place <= kept:
        return None
    return Loser(name=name, step=step, place=place, num_runs=len(values), kept=kept)
