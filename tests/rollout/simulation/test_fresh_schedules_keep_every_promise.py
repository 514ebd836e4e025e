"""Schedules that nobody has run before: each tree explores seeds of its own, so that a failure comes with a change and stays.

The seeds are printed, one that fails with its schedule; ``simulate.py SEED`` beside this file runs it again.
"""

from __future__ import annotations

import pytest
from fresh_seeds import find_first
from simulate import simulate

QUICK, LONG = 120, 2000
"""How many: three a second on a quiet core."""


def explore(count: int) -> None:
    first = find_first()
    print(f"fresh seeds from {first} on")
    for seed in range(first, first + count):
        report = simulate(seed)
        assert not report.broken, report.explain()


def test_fresh_schedules():
    explore(QUICK)


@pytest.mark.slow
def test_many_fresh_schedules():
    explore(LONG)
