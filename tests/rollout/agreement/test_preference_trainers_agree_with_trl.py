"""Our learner and TRL 1.16's trainers, side by side on the same rows, in float64: SFT, DPO, IPO, KTO, Reward.

Both take 20 steps of SGD from the same weights, with the same reference beside them, on the same text:
TRL tokenizes, batches, pads, scores and steps by itself; ours renders and takes ``run_step``. Only what
would round to float32 is replaced: TRL's fused head by the plain logits, and on both sides the norm.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from agreement_kit import farthest
from preference_sides import CASES, ours, pairs, theirs, write_reward_model

from rollout.algorithms.preference.dpo import DpoSettings

pytestmark = pytest.mark.process

CLOSE = 1e-8


@pytest.fixture(scope="module")
def reward_path(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reward_model(path, tmp_path_factory.mktemp("reward") / "model")


@pytest.mark.parametrize("name", CASES)
def test_the_trainers_take_the_same_steps(name, path, reward_path, tmp_path) -> None:
    base, algorithm, given = CASES[name]
    model_path = reward_path if base == "Reward" else path
    norms, moved = farthest(ours(model_path, algorithm), theirs(model_path, tmp_path, base, given))
    print(f"{name}: norms {norms:.1e}, parameters {moved:.1e}")
    assert norms < CLOSE
    assert moved < CLOSE


def test_both_sides_moved_and_another_loss_would_show(path) -> None:
    first = ours(path, pairs(DpoSettings(beta=0.3)))
    moved = [float((p - first.start[n]).norm()) for n, p in first.parameters.items()]
    assert min(moved) > 1e-7
    assert max(moved) > 1e-2
    smoothed = pairs(DpoSettings(beta=0.3, form="Conservative", label_smoothing=0.01))
    assert max(farthest(first, ours(path, smoothed))) > 1e-5
