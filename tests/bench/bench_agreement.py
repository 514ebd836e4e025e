"""How far the learner and TRL 1.16's trainers come apart in 20 steps of AdamW in float32, as people train.

In float64 with SGD they are held equal to 1e-8 by ``tests/rollout/agreement``; the same cases here, with
nothing of TRL's replaced but its sampling. A distance of parameters is relative to the way they went:
AdamW's first steps have the size of the learning rate whatever the gradient, so that a weight whose
gradient is rounding alone may go either way.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from datasets import disable_progress_bars
from figures import Figure, level

sys.path.insert(0, str(Path(__file__).parents[1] / "rollout" / "agreement"))

import policy_sides
import preference_sides
from agreement_kit import MODEL, USUAL, computing_in, farthest

from rollout.models.resolve import resolve_model


def measure() -> Iterator[Figure]:
    """Two figures a case: of the gradient norms over the steps, of the parameters after the last."""
    disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder, computing_in(USUAL):
        home = Path(folder)
        path = resolve_model(MODEL, cache_dir=home / "models").path
        for name, norms, moved in (*_policies(path, home), *_preferences(path, home)):
            yield level(f"{name}: gradient norms", [norms], "relative", "<= 0.0001")
            yield level(f"{name}: parameters", [moved], "relative", "<= 0.001")


def _policies(path: Path, home: Path) -> Iterator[tuple[str, float, float]]:
    records = policy_sides.make_records(path, USUAL)
    for name, (algorithm, settings) in policy_sides.CASES.items():
        theirs = policy_sides.theirs(path, records, home / name, settings, USUAL)
        yield name, *farthest(policy_sides.ours(path, records, algorithm, USUAL), theirs)


def _preferences(path: Path, home: Path) -> Iterator[tuple[str, float, float]]:
    reward_path = preference_sides.write_reward_model(path, home / "reward")
    for name, (base, algorithm, given) in preference_sides.CASES.items():
        at = reward_path if base == "Reward" else path
        theirs = preference_sides.theirs(at, home / name, base, given, USUAL)
        yield name, *farthest(preference_sides.ours(at, algorithm, USUAL), theirs)
