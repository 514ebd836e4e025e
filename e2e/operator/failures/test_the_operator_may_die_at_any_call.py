"""Killed at any call, before or after the server has acted, or left without the answer: the same end.

The same children with the same specs, each once; the same status; every event once; few more writes.
"""

import pytest
from deaths import FAULTS, crew, spread
from lives import LIVES

SAMPLES = 3
QUICK = ("create", "end")
"""What makes the most, and what takes it away. Of all lives, quick: tests/rollout_operator/plan/test_planning_survives_death_at_any_moment.py."""


@pytest.mark.process
@pytest.mark.parametrize(
    "life",
    [
        pytest.param(life, marks=[pytest.mark.slow] if life.name not in QUICK else [])
        for life in LIVES
    ],
    ids=lambda life: life.name,
)
def test_at_some_calls(life, bare, puppets, tmp_path):
    with crew(bare, puppets, tmp_path) as team:
        clean = team.play(life)
        numbers = spread(len(clean.calls), SAMPLES)
        met = [
            team.play_with(life, fault, number, clean)
            for number, fault in zip(numbers, FAULTS, strict=False)
        ]
    print(f"{life.name}: {len(clean.calls)} calls, {clean.num_writes} writes, faults met: {met}")
    assert any(met)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.name)
def test_at_every_call(life, fault, bare, puppets, tmp_path):
    with crew(bare, puppets, tmp_path) as team:
        clean = team.play(life)
        calls = len(clean.calls)
        met = [team.play_with(life, fault, number, clean) for number in range(1, calls + 1)]
    print(f"{life.name}: {calls} calls, {clean.num_writes} writes; {fault}: {sum(met)} met")
    assert sum(met) >= calls - 3  # counts of pods are written as they come: the last ones vary
