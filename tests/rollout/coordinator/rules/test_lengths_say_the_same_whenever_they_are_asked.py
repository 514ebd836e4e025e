"""A window of lengths is put in order when somebody asks: how often that is changes no answer."""

from __future__ import annotations

import random

import pytest

from rollout.coordinator.rules.lengths import KEPT_MAX, Lengths


@pytest.mark.parametrize("seed", range(4))
def test_a_window_that_was_asked_often_says_what_a_fresh_one_says(seed: int) -> None:
    chance = random.Random(seed)
    asked, added = Lengths(), []
    for _ in range(60):
        new = [chance.randrange(50) for _ in range(chance.choice([1, 8, 65, 500]))]
        asked.add(new)
        added += new
        if chance.random() < 0.7:
            fresh = Lengths(added[-KEPT_MAX:])
            share, tokens = chance.random(), chance.randrange(60)
            assert asked.quantile(share) == fresh.quantile(share)
            assert asked.remaining(tokens) == fresh.remaining(tokens)
            assert len(asked) == len(fresh)
    assert len(added) > KEPT_MAX
