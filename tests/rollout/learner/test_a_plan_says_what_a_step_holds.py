"""The memory that `rollout plan` prints for a learner is what its step has alive: `make bench TARGET=memory`, three of it."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from bench_memory import compare, draw_settings

SETTINGS = [one for one in draw_settings(30) if one.layers <= 4 and one.vocab <= 4096]


@pytest.mark.parametrize("setting", [SETTINGS[0], SETTINGS[3], SETTINGS[-1]], ids=str)
def test_the_bytes_of_a_step_are_those_of_the_plan(setting):
    said, found, parts = compare(setting)
    assert 0.97 <= said / found <= 1.25, parts
