"""A task that is learned in seconds: answer with even tokens.

Everything but the coordinator is a run's own: the embedded engine loads the weights that the learner
stored and samples them; the learner takes steps on what it sampled. An answer ends at one of the stop
tokens or at its limit; its reward is the share of its tokens that are even.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.learner.context import LearnerContext
from rollout.protocol import messages as m
from rollout.types import (
    Completion,
    GenerateRequest,
    SamplingParams,
    Trajectory,
    TrajectoryGroup,
    WeightVersion,
)

SAMPLES, LENGTH = 64, 8
"""Samples of a step, and the longest answer in tokens."""
STOPS = tuple(range(224, 256))
"""An eighth of the vocabulary, half of it even: random answers have about five tokens."""
SAMPLING = SamplingParams(max_new_tokens=LENGTH, stop_token_ids=STOPS)
HELD_OUT = 256

Prompt = tuple[int, ...]


def draw_prompts(seed: int, count: int, *, held_out: bool = False) -> list[Prompt]:
    """Three tokens each; held-out prompts begin with a token that no other begins with."""
    draw = random.Random(seed)
    first = (200, 255) if held_out else (0, 199)
    return [(draw.randint(*first), draw.randrange(200), draw.randrange(200)) for _ in range(count)]


def reward_of(tokens: Sequence[int]) -> float:
    return sum(token % 2 == 0 for token in tokens) / len(tokens)


@dataclass(kw_only=True)
class EvenAnswers:
    """Makes the batches of one run. ``lag``: how many steps the engine's weights are behind."""

    parts: LearnerContext
    calls: Any
    engine: EmbeddedEngine
    group: int
    lag: int = 0

    def batch(self, step: int) -> m.Batch:
        """The groups of ``step``, sampled from the version that a run would have had."""
        count = SAMPLES // self.group
        first = (step - 1) * count
        prompts = draw_prompts(step, count)
        answers = self._sample(self._version(max(step - 1 - self.lag, 0)), prompts, first)
        groups = tuple(
            _group(first + i, prompt, of_prompt)
            for i, (prompt, of_prompt) in enumerate(zip(prompts, answers, strict=True))
        )
        return m.Batch(
            step=step,
            ids=tuple(tuple(f"t/{g.ordinal}/{t.sample}" for t in g.trajectories) for g in groups),
            groups=groups,
            cursor=m.Cursor(next_ordinal=step * count),
        )

    def measure(self, step: int) -> float:
        """The mean reward of held-out prompts, one answer each, under the weights after ``step``."""
        prompts = draw_prompts(10**6, HELD_OUT, held_out=True)
        answers = self._sample(self._version(step), prompts, 10**6, group=1)
        return sum(reward_of(answer.token_ids) for [answer] in answers) / HELD_OUT

    def _version(self, step: int) -> WeightVersion:
        return self.calls.records[step].version if step else self.calls.initial

    def _sample(
        self, version: WeightVersion, prompts: list[Prompt], first: int, group: int = 0
    ) -> Sequence[Sequence[Completion]]:
        size = group or self.group
        requests = [
            GenerateRequest(
                prompt_ids=prompt,
                seeds=tuple((first + i) * size + sample for sample in range(size)),
                sampling=SAMPLING,
            )
            for i, prompt in enumerate(prompts)
        ]

        async def run() -> Sequence[Sequence[Completion]]:
            await self.engine.load(version, self.parts.store.path(version.object))
            return await self.engine.generate(requests)

        return asyncio.run(run())


def _group(ordinal: int, prompt: Prompt, answers: Sequence[Completion]) -> TrajectoryGroup:
    return TrajectoryGroup(
        ordinal=ordinal,
        trajectories=tuple(
            Trajectory(
                ordinal=ordinal,
                sample=sample,
                prompt_ids=prompt,
                token_ids=answer.token_ids,
                actor_logprobs=answer.logprobs,
                loss_mask=(1,) * len(answer.token_ids),
                spans=answer.spans,
                rewards={},
                reward=reward_of(answer.token_ids),
                ending=answer.finish,
            )
            for sample, answer in enumerate(answers)
        ),
    )
