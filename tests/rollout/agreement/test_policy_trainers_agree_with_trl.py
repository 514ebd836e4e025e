"""Our learner and TRL 1.16's trainers, side by side on the same recorded completions, in float64.

Both take 20 steps of SGD from the same weights; prompts, completions, rewards and the logprobs they were
sampled under (so that no ratio is 1) are recorded. TRL runs its own ``train``: advantages, loss, backward
and optimizer are its. Only what would round to float32 is replaced, on its side the fused head, the
reward tensor and the generation, on both sides the norm; prompts have one length, since padding moves
positions and rotary angles are float32. Ours is ``run_step`` on a ``PolicyWork``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from agreement_kit import farthest
from policy_sides import CASES, GRPO, Record, make_records, ours, theirs

from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.surrogates.clip import Clipped

pytestmark = pytest.mark.process

CLOSE = 1e-8


@pytest.fixture(scope="module")
def records(path: Path) -> list[Record]:
    return make_records(path)


@pytest.mark.parametrize("name", CASES)
def test_policy_trainers_take_the_same_steps(name, path, records, tmp_path) -> None:
    algorithm, settings = CASES[name]
    found = theirs(path, records, tmp_path, settings)
    norms, moved = farthest(ours(path, records, algorithm), found)
    print(f"{name}: norms {norms:.1e}, parameters {moved:.1e}")
    assert norms < CLOSE
    assert moved < CLOSE


def test_a_slightly_different_clip_would_show(path, records) -> None:
    first = ours(path, records, GRPO)
    other = ours(path, records, replace(GRPO, loss=GrpoSettings(surrogate=Clipped(high=0.27))))
    norms, moved = farthest(first, other)
    assert norms > 1e-4
    assert moved > 1e-4
