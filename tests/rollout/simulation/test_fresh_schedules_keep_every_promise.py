"""Schedules that nobody has run before: other seeds in every run of the tests, for a while of CPU time.

The seeds are printed, one that fails with its schedule; ``simulate.py SEED`` beside this file runs it again.
"""

import random
import time

import pytest
from scenario import FRESH_FIRST
from simulate import simulate

QUICK_SECONDS, LONG_SECONDS = 45.0, 600.0


def explore(seconds: float) -> None:
    seed = FRESH_FIRST + random.SystemRandom().randrange(10**9)
    over = time.process_time() + seconds
    print(f"fresh seeds from {seed} on")
    while time.process_time() < over:
        report = simulate(seed)
        assert not report.broken, report.explain()
        seed += 1
    print(f"kept up to {seed - 1}")


def test_fresh_schedules():
    explore(QUICK_SECONDS)


@pytest.mark.slow
def test_many_fresh_schedules():
    explore(LONG_SECONDS)
