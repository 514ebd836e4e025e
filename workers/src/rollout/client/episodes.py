"""An environment played with a sampler of a training service, and what is learned from an episode.

Environments, episodes, budgets and rendering are those of runs; only the tokens come from the service.

Axes: N tokens of an episode without its last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from rollout.actor.episodes import (
    Episode,
    action_of,
    end_episode,
    over_budget,
    take_answer,
    take_completion,
    too_many_calls,
)
from rollout.actor.turns.environment_turns import replace_ending
from rollout.algorithms.advantages.groups import group_advantages
from rollout.client.data import Datum, ModelInput, SamplingSettings
from rollout.client.sampling import SamplingClient
from rollout.errors import DataError, InfrastructureError
from rollout.seams import Env, Renderer
from rollout.seeds import derive_seed
from rollout.turns import Budgets, Ending
from rollout.types import Completion, SamplingParams, WeightVersion

UNNAMED = WeightVersion(lineage=0, step=0, digest="", object="")
"""Weights of a service are named by their sampler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlayer:
    """What episodes are played with."""

    sampler: SamplingClient
    """Draws the replies."""
    renderer: Renderer
    """Of the base's chat template."""
    sampling: SamplingParams
    """Of each reply; stop texts, ``top_k`` and ``top_p`` are not passed on."""
    context_max: int
    """Tokens that the base sees at once, prompt included."""
    budgets: Budgets = field(default_factory=Budgets)
    """Of each episode; ``seconds`` is not looked at."""

    async def play(self, environment: Env, seed: int) -> Episode:
        """An episode from start to end, with noise of ``seed``; the environment is closed.

        Raises ServiceError, DataError, and InfrastructureError for an ending that is not the policy's.
        """
        try:
            episode = await self._begin(environment, seed)
            while episode.ending is None:
                episode = await self._turn(environment, episode, seed)
        finally:
            await environment.close()
        return episode

    async def _begin(self, environment: Env, seed: int) -> Episode:
        said = await environment.start()
        tools = said.tools or ()
        return Episode(
            task_id="",
            ordinal=0,
            sample=0,
            seed=derive_seed(seed, "service-turn", 0, 0),
            messages=said.messages,
            prompt_ids=self.renderer.render_prompt(said.messages, tools),
            tools=tools,
        )

    async def _turn(self, environment: Env, episode: Episode, seed: int) -> Episode:
        if len(episode.context_ids) + self.sampling.max_new_tokens > self.context_max:
            return replace(episode, ending="length")
        drawn = await self._draw(episode)
        episode = take_completion(
            episode,
            drawn,
            drawn.token_ids,
            self.renderer,
            sampling=self.sampling,
            version=UNNAMED,
        )
        if episode.ending is not None:
            return episode
        if too_many_calls(episode, self.budgets):
            return replace(episode, ending="tool-call-limit")
        said = await environment.step(action_of(episode))
        if isinstance(said, Ending):
            return _end(episode, said)
        if (kind := over_budget(episode, self.budgets, 0.0)) is not None:
            return end_episode(episode, replace_ending(said, kind))
        if said.after is not None:
            raise DataError(
                "the environment begins another row of its episode; what is learned from a service's episode is one row:"
                " take an environment whose conversation only grows"
            )
        noise = derive_seed(seed, "service-turn", 0, episode.turn)
        return take_answer(episode, said, noise, self.renderer)

    async def _draw(self, episode: Episode) -> Completion:
        settings = SamplingSettings(
            max_tokens=self.sampling.max_new_tokens,
            temperature=self.sampling.temperature,
            stop=list(self.sampling.stop_token_ids or self.renderer.stop_token_ids),
            seed=episode.seed,
        )
        prompt = ModelInput.from_ints(episode.context_ids)
        (one,) = (await self.sampler.sample(prompt, 1, settings)).sequences
        return Completion(
            token_ids=tuple(one.tokens), logprobs=tuple(one.logprobs), finish=one.stop_reason
        )


def episode_reward(episode: Episode) -> float:
    """What the environment gave for all turns."""
    return sum(reward or 0.0 for reward in episode.turn_rewards)


def policy_data(
    played: Sequence[Episode], rewards: Sequence[float], num_groups: int
) -> list[Datum]:
    """What a step learns from episodes that lie group by group: advantages over the group's mean, by the mean of all sampled tokens.

    Groups whose rewards are all equal are left out; empty where all are.
    """
    rewards_PG = torch.tensor(rewards).reshape(num_groups, -1)
    found = group_advantages(rewards_PG, torch.ones_like(rewards_PG), scale="None")
    advantages = found.advantages_PG.ravel().tolist()
    learned = [(one, a) for one, a in zip(played, advantages, strict=True) if a]
    tokens = sum(sum(one.loss_mask) for one, _ in learned)
    return [episode_datum(one, a / tokens) for one, a in learned]


def episode_datum(episode: Episode, advantage: float) -> Datum:
    """What a loss of sampled tokens reads [N]: the advantage where the policy sampled, 0 at all other tokens."""
    ids = episode.context_ids
    before = len(episode.prompt_ids) - 1
    return Datum(
        ModelInput.from_ints(ids[:-1]),
        {
            "target_tokens": ids[1:],
            "logprobs": [0.0] * before + list(episode.logprobs),
            "advantages": [0.0] * before + [advantage * one for one in episode.loss_mask],
        },
    )


def _end(episode: Episode, said: Ending) -> Episode:
    if said.owner != "policy":
        raise InfrastructureError(f"the environment ended as {said.kind}: {said.detail}")
    return end_episode(episode, said)
