"""One sandbox in ten fails, whatever the policy did: advantages are on average those of a run where none fails.

Both runs are played by the actor's own loop over the same noise. A sandbox that fails again in a fresh environment loses
its sample; the others' advantages are compared, group by group, with what they were. A failure that depends on the
outcome is found by the same measure, so that the measure is known to see one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from actor_fakes import LetterRenderer, SayingEngine, make_task
from blake3 import blake3

from rollout.actor.runner import RunnerParts, play
from rollout.algorithms.advantages.groups import group_advantages
from rollout.errors import InfrastructureError
from rollout.turns import Ending, State
from rollout.types import Message

GROUP, LOST = 8, 0.1
SCALES = {"GroupMean": "Group", "LeaveOneOut": "None"}
"""The baselines, each in the unit that it is used in."""


def share(*words: object) -> float:
    """A number in [0, 1) that belongs to the words."""
    return int.from_bytes(blake3(repr(words).encode()).digest(8), "big") / 2**64


def say(prompt: str, seed: int) -> str:
    """Right or wrong, some prompts more often right than others, and which sample it is."""
    right = share("right", prompt, seed) < share("how hard", prompt)
    return f"{int(right)}{share('which', prompt, seed):.4f}"


Fails = Callable[[str, str, int], bool]
"""Whether the sandbox of a prompt that hears a reply for the n-th time fails."""


class Sandboxes:
    """Builds episodes of one reply, whose sandboxes fail as they are told to."""

    def __init__(self, fails: Fails) -> None:
        self.fails = fails
        self.heard: dict[tuple[str, str], int] = {}

    def source(self, split, seed): ...

    def build(self, row):
        return Sandbox(self, row["prompt"])


class Sandbox:
    def __init__(self, every: Sandboxes, prompt: str) -> None:
        self.every, self.prompt = every, prompt

    async def start(self):
        return State(messages=(Message(role="user", content=self.prompt),))

    async def step(self, action):
        key = self.prompt, action.text
        times = self.every.heard[key] = self.every.heard.get(key, 0) + 1
        if self.every.fails(self.prompt, action.text, times):
            raise InfrastructureError("the sandbox is gone")
        return Ending(turn_reward=float(action.text[0]))

    async def close(self): ...


async def play_groups(number: int, fails: Fails) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards and the mask of what is there, both [P, G]."""
    world = Sandboxes(fails)
    stage = RunnerParts(
        engine=SayingEngine(say), renderer=LetterRenderer(), builders=lambda task: world, seed=7
    )
    rewards, mask = torch.zeros(number, GROUP), torch.zeros(number, GROUP)
    for place, played in enumerate(
        await play([make_task(n, samples=GROUP) for n in range(number)], stage)
    ):
        assert played.failure is None or played.failure.kind == "infrastructure"
        for episode in played.episodes:
            rewards[place, episode.sample] = sum(one or 0.0 for one in episode.turn_rewards)
            mask[place, episode.sample] = 1.0
    return rewards, mask


def moved(
    baseline: str, calm: torch.Tensor, rewards: torch.Tensor, mask: torch.Tensor
) -> tuple[float, float]:
    """By how much the survivors' advantages differ from those of the calm run: mean over groups, and its standard error."""
    options = {"baseline": baseline, "scale": SCALES[baseline]}
    whole = group_advantages(calm, torch.ones_like(calm), **options).advantages_PG
    left = group_advantages(rewards, mask, **options).advantages_PG
    there = mask.sum(1) > 1
    apart_P = (((left - whole) * mask).sum(1) / mask.sum(1).clamp(min=1))[there]
    return float(apart_P.mean()), float(apart_P.std() / math.sqrt(len(apart_P)))


def never(prompt, reply, times):
    return False


def at_random(prompt, reply, times):
    return share("lost", prompt, reply) < LOST


def of_the_right_ones(prompt, reply, times):
    """As many in all, but of those alone that would be paid."""
    return reply[0] == "1" and share("lost", prompt, reply) < 2 * LOST


def once(prompt, reply, times):
    return times == 1 and at_random(prompt, reply, times)


async def compare(number: int, *ways: Fails) -> list[dict[str, tuple[float, float]]]:
    """Of each way to fail: what ``moved`` says, by baseline."""
    calm, whole = await play_groups(number, never)
    assert bool(whole.all())
    found = []
    for fails in ways:
        rewards, mask = await play_groups(number, fails)
        assert torch.equal(rewards, calm * mask)
        assert 1 - float(mask.mean()) == pytest.approx(LOST, abs=0.03)
        found.append({baseline: moved(baseline, calm, rewards, mask) for baseline in SCALES})
    return found


async def test_a_sandbox_that_fails_once_moves_nothing():
    calm, _ = await play_groups(60, never)
    rewards, mask = await play_groups(60, once)

    assert bool(mask.all())
    assert torch.equal(rewards, calm)


async def test_a_few_groups_show_a_planted_bias_and_no_other():
    unbiased, biased = await compare(100, at_random, of_the_right_ones)

    for baseline in SCALES:
        assert abs(unbiased[baseline][0]) <= 3 * unbiased[baseline][1]
        assert biased[baseline][0] > 3 * biased[baseline][1]


@pytest.mark.slow
async def test_over_two_thousand_groups_only_a_planted_bias_is_beyond_chance():
    unbiased, biased = await compare(2_000, at_random, of_the_right_ones)

    for baseline in SCALES:
        assert abs(unbiased[baseline][0]) <= 2 * unbiased[baseline][1]
        assert biased[baseline][0] > 8 * biased[baseline][1]
