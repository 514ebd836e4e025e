"""Every member of the GRPO family raises the reward of prompts it never saw; spoilt, none of them does.

Each is the manifest's: its preset, or the fields that make it. Two passes over every batch, so that the
ratio leaves 1 and bounds act; the corrections for a stale engine are fed by one that is two steps behind.
Run with ``-s`` for the figures.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from even_answers import SAMPLES, EvenAnswers
from named_settings import policy_settings_of

from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.learner.loop import run_learner
from rollout.learner.objectives import policy as policy_work
from rollout.learner.objectives.policy_advantages import PolicyAdvantages

STEPS, GROUP, EPOCHS = 30, 4, 2
LEARNING_RATE = 3e-3
RISE_MIN, CONTROL_RISE_MAX = 0.3, 0.1
"""Shares of even tokens. Measured: rises of 0.41 to 0.49, and at most 0.04 either way when shuffled."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a manifest says of it. ``lag``: how many steps the engine is behind."""

    preset: str | None = None
    grpo: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    group: int = GROUP
    lag: int = 0


def corrected(**how: Any) -> Case:
    """GRPO on samples that are two steps old."""
    return Case(train={"importanceSampling": how}, lag=2)


CASES: dict[str, Case] = {
    "grpo": Case(preset="grpo@v1"),
    "grpo, batch": Case(grpo={"advantageScale": "Batch"}),
    "grpo, none": Case(grpo={"advantageScale": "None"}),
    "dr-grpo": Case(preset="dr-grpo@v1"),
    "dapo": Case(preset="dapo@v1"),
    "gspo": Case(preset="gspo@v1"),
    "cispo": Case(preset="cispo@v1"),
    "cispo, relative": Case(grpo={"surrogate": {"cispo": {"relative": {}}}}),
    "sapo": Case(preset="sapo@v1"),
    "gmpo": Case(preset="gmpo@v1"),
    "vespo": Case(preset="vespo@v1"),
    "dppo": Case(preset="dppo@v1"),
    "rloo": Case(preset="rloo@v1"),
    "reinforce++": Case(preset="reinforce-plus-plus@v1", group=1),
    "reinforce++, baseline": Case(preset="reinforce-plus-plus-baseline@v1"),
    "tokens truncated": corrected(tokenTruncated={"cap": "1.2"}),
    "tokens masked": corrected(tokenMasked={"low": "0.8", "high": "1.25"}),
    "completions truncated": corrected(sequenceTruncated={"cap": "1.5"}),
    "completions masked": corrected(sequenceMasked={"low": "0.5", "high": "2"}),
}
QUICK = ("grpo", "rloo", "cispo")
EVERY = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]

Spoil = Callable[[PolicyAdvantages], PolicyAdvantages]


def flip(found: PolicyAdvantages) -> PolicyAdvantages:
    """Better than its siblings becomes worse."""
    return _changed(found, lambda values_PG: -values_PG)


def shuffle(found: PolicyAdvantages) -> PolicyAdvantages:
    """Every answer gets another one's."""
    order = list(range(SAMPLES))
    random.Random(SAMPLES).shuffle(order)
    return _changed(found, lambda values_PG: values_PG.flatten()[order].view_as(values_PG))


def _changed(
    found: PolicyAdvantages, change: Callable[[torch.Tensor], torch.Tensor]
) -> PolicyAdvantages:
    """Advantages changed by sample, the tokens of a sample all alike; no group counts as silent."""
    values_PG = change(found.found.advantages_PG)
    by_token = found.by_token and {
        place: torch.full_like(tokens_C, float(values_PG[place]))
        for place, tokens_C in found.by_token.items()
    }
    inner = replace(
        found.found,
        advantages_PG=values_PG,
        zero_variance_P=torch.zeros_like(found.found.zero_variance_P),
    )
    return replace(found, found=inner, by_token=by_token)


@pytest.fixture
def learn(world, coordinator, tmp_path, monkeypatch):
    """Mean reward on held-out prompts before and after a run of a case; and the run's metrics."""

    def run(name: str, spoil: Spoil | None = None):
        case = CASES[name]
        if spoil is not None:
            estimate = policy_work.estimate_advantages
            monkeypatch.setattr(
                policy_work, "estimate_advantages", lambda *args: spoil(estimate(*args))
            )
        grpo = {"groupSize": case.group, "epochs": EPOCHS} | case.grpo
        algorithm = policy_settings_of(tmp_path, case.preset, grpo, case.train)
        optimizer = replace(world.settings.optimizer, learning_rate=LEARNING_RATE)
        chosen = replace(
            world.settings, algorithm=algorithm, optimizer=optimizer, anchor_every_steps=99
        )
        calls = coordinator(steps_max=STEPS)
        parts = replace(world, settings=chosen).parts(calls)
        engine = EmbeddedEngine(world.model_path, batch_groups=SAMPLES // case.group)
        task = EvenAnswers(parts=parts, calls=calls, engine=engine, group=case.group, lag=case.lag)
        calls.make = task.batch
        run_learner(parts, parts.session.start(1, "here"), world.watch)
        before, after = task.measure(0), task.measure(STEPS)
        print(f"{name}: {before:.3f} -> {after:.3f}")
        return before, after, calls.metrics

    return run


@pytest.mark.parametrize("name", EVERY)
def test_it_learns(learn, name) -> None:
    before, after, metrics = learn(name)
    assert after - before >= RISE_MIN
    assert max(step["ratio_max"] for step in metrics) > 1.1
    if CASES[name].lag:
        assert max(step["importance_truncated_share"] for step in metrics) > 0


@pytest.mark.parametrize("name", EVERY)
def test_with_the_sign_flipped_it_learns_the_opposite(learn, name) -> None:
    before, after, _ = learn(name, flip)
    assert after - before <= -RISE_MIN


@pytest.mark.parametrize("name", EVERY)
def test_with_advantages_shuffled_it_learns_nothing(learn, name) -> None:
    before, after, _ = learn(name, shuffle)
    assert abs(after - before) <= CONTROL_RISE_MAX
