"""PPO with a critic raises the reward of prompts it never saw; the same run with its advantages spoilt does not.

The task: answer with even tokens. Sampling, learning and committing are a run's own; only the engine is a
plain loop. What is measured is the mean reward of sampled answers to held-out prompts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rollout.coordinator import messages as m
from rollout.learner import ppo_work
from rollout.learner.ppo_estimates import Estimates
from rollout.types import Trajectory, TrajectoryGroup, VersionSpan

STEPS, PROMPTS, LENGTH, VOCABULARY = 30, 64, 4, 256
RISE_MIN, CONTROL_RISE_MAX = 0.25, 0.08

Draw = tuple[list[tuple[int, ...]], torch.Tensor, torch.Tensor]


def draw_prompts(seed: int, *, held_out: bool) -> list[tuple[int, ...]]:
    """Three tokens each; held-out prompts begin with a token that no other begins with."""
    draw = random.Random(seed)
    first = (200, 255) if held_out else (0, 199)
    return [
        (draw.randint(*first), draw.randrange(200), draw.randrange(200)) for _ in range(PROMPTS)
    ]


@torch.no_grad()
def answer(model: torch.nn.Module, prompts: list[tuple[int, ...]], seed: int) -> Draw:
    """Sampled answers of ``LENGTH`` tokens, and their logprobs."""
    noise = torch.Generator().manual_seed(seed)
    ids, logprobs = torch.tensor(prompts), []
    for _ in range(LENGTH):
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, 0]
        logp = torch.log_softmax(logits[:, :VOCABULARY], -1)
        token = torch.multinomial(logp.exp(), 1, generator=noise)
        logprobs.append(torch.log_softmax(logits, -1).gather(1, token))
        ids = torch.cat([ids, token], dim=1)
    return prompts, ids[:, -LENGTH:], torch.cat(logprobs, dim=1)


def rewards_of(tokens: torch.Tensor) -> torch.Tensor:
    return (tokens % 2 == 0).float().mean(dim=1)


def make_batch(model: torch.nn.Module, step: int) -> m.Batch:
    prompts, tokens, logprobs = answer(model, draw_prompts(step, held_out=False), step)
    groups = tuple(
        TrajectoryGroup(
            ordinal=step * PROMPTS + i,
            trajectories=(
                Trajectory(
                    ordinal=step * PROMPTS + i,
                    sample=0,
                    prompt_ids=prompt,
                    token_ids=tuple(tokens[i].tolist()),
                    actor_logprobs=tuple(logprobs[i].tolist()),
                    loss_mask=(1,) * LENGTH,
                    spans=(VersionSpan(start=0, end=LENGTH, lineage=0, step=step - 1),),
                    rewards={},
                    reward=float(rewards_of(tokens[i : i + 1])),
                    ending="length",
                ),
            ),
        )
        for i, prompt in enumerate(prompts)
    )
    ids = tuple((f"t/{group.ordinal}/0",) for group in groups)
    cursor = m.Cursor(next_ordinal=(step + 1) * PROMPTS)
    return m.Batch(step=step, ids=ids, groups=groups, cursor=cursor)


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
        model = parts.trainer.policy.model
        calls.make = lambda step: make_batch(model, step)
        before = measure(model)
        from rollout.learner.loop import run_learner

        run_learner(parts, parts.session.start(1, "here"), world.watch)
        assert calls.committed == STEPS
        return measure(model) - before

    return run


def measure(model: torch.nn.Module) -> float:
    found = [
        rewards_of(answer(model, draw_prompts(seed, held_out=True), seed)[1]).mean()
        for seed in range(1000, 1004)
    ]
    return float(torch.stack(found).mean())


def spoil(monkeypatch, change: Callable[[Estimates], Estimates]) -> None:
    """Change what the learner believes of its batch, after it was estimated."""
    estimate = ppo_work.estimate
    monkeypatch.setattr(ppo_work, "estimate", lambda *args: change(estimate(*args)))


def flip(found: Estimates) -> Estimates:
    return replace(found, advantages={s: -a for s, a in found.advantages.items()})


def shuffle(found: Estimates) -> Estimates:
    """Every answer gets another one's advantages (all are of one length)."""
    places = list(found.advantages)
    given = list(places)
    random.Random(len(places)).shuffle(given)
    advantages = {to: found.advantages[of] for to, of in zip(places, given, strict=True)}
    return replace(found, advantages=advantages)


def test_it_learns(rise) -> None:
    assert rise() >= RISE_MIN


def test_with_the_sign_flipped_it_learns_the_opposite(rise, monkeypatch) -> None:
    spoil(monkeypatch, flip)
    assert rise() <= -CONTROL_RISE_MAX


def test_with_advantages_shuffled_it_learns_nothing(rise, monkeypatch) -> None:
    spoil(monkeypatch, shuffle)
    assert abs(rise()) <= CONTROL_RISE_MAX
