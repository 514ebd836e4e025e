"""PPO with a critic raises the reward of prompts it never saw; the same run with its advantages spoilt does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from even_answers import LENGTH, SAMPLES, EvenAnswers

from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.learner.loop import run_learner
from rollout.learner.objectives import ppo as ppo_work
from rollout.learner.objectives.ppo_estimates import Estimates

STEPS = 30
RISE_MIN, CONTROL_RISE_MAX = 0.25, 0.1


@pytest.fixture
def rise(world, ppo_settings, coordinator) -> Callable[[], float]:
    """How much a whole run raises the mean reward on held-out prompts."""
    algorithm = replace(
        ppo_settings,
        kl_coefficient=0.01,
        kl_target=None,
        epochs=1,
        width=LENGTH,
        critic=replace(ppo_settings.critic, warmup_steps=2),
    )
    optimizer = replace(world.settings.optimizer, learning_rate=3e-3)
    chosen = replace(
        world.settings, algorithm=algorithm, optimizer=optimizer, anchor_every_steps=99
    )

    def run() -> float:
        calls = coordinator(steps_max=STEPS)
        parts = replace(world, settings=chosen).parts(calls)
        engine = EmbeddedEngine(world.model_path, batch_groups=SAMPLES)
        task = EvenAnswers(parts=parts, calls=calls, engine=engine, group=1)
        calls.make = task.batch
        run_learner(parts, parts.session.start(1, "here"), world.watch)
        before, after = task.measure(0), task.measure(STEPS)
        print(f"{before:.3f} -> {after:.3f}")
        return after - before

    return run


def spoil(monkeypatch, change: Callable[[Estimates], Estimates]) -> None:
    """Change what the learner believes of its batch, after it was estimated."""
    estimate = ppo_work.estimate
    monkeypatch.setattr(ppo_work, "estimate", lambda *args: change(estimate(*args)))


def flip(found: Estimates) -> Estimates:
    return replace(found, advantages={s: -a for s, a in found.advantages.items()})


def shuffle(found: Estimates) -> Estimates:
    """Every answer gets another one's mean advantage, at all of its tokens."""
    places = list(found.advantages)
    given = list(places)
    random.Random(len(places)).shuffle(given)
    advantages = {
        to: torch.full_like(found.advantages[to], float(found.advantages[of].mean()))
        for to, of in zip(places, given, strict=True)
    }
    return replace(found, advantages=advantages)


def test_it_learns(rise) -> None:
    assert rise() >= RISE_MIN


def test_with_the_sign_flipped_it_learns_the_opposite(rise, monkeypatch) -> None:
    spoil(monkeypatch, flip)
    assert rise() <= -RISE_MIN


def test_with_advantages_shuffled_it_learns_nothing(rise, monkeypatch) -> None:
    spoil(monkeypatch, shuffle)
    assert abs(rise()) <= CONTROL_RISE_MAX
