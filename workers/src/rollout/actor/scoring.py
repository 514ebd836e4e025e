"""Rewards of episodes that have ended, by the pipeline that belongs to each task.

A reward that raises, hangs or returns no finite number is the task's failure, of kind ``data``: the
coordinator has it tried once more and then stops the run with the message. It is never a reward of 0.
One that raises InfrastructureError (a judge that answers 503) fails nobody's task: the samples that it could
not score are lost to infrastructure, which are tried again with the same noise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rollout.actor.episodes import OUT_OF_TIME, Episode, Score
from rollout.actor.runner import PlayedTask
from rollout.errors import RewardError, RewardUnavailable
from rollout.protocol.messages import Failure, Task
from rollout.rewards.calls import RewardBatch
from rollout.rewards.pipeline import RewardPipeline
from rollout.types import Completion, Message

ROUNDS_MAX = 3
"""Times that what is left of a batch is scored, when a reward could not get at a part of it."""

Scores = tuple[Score | Failure, ...] | Failure
"""Of a task: a score, or why it was lost, for each of its episodes; or the failure of the whole task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineScorer:
    """Scores claimed tasks.

    ``apart`` True calls the rewards once per task, so that no score can depend on what else was
    claimed; False calls them once per pipeline for all tasks, which a slow reward may batch.
    """

    pipelines: Callable[[Task], RewardPipeline]
    apart: bool

    async def score(self, played: Sequence[PlayedTask]) -> Sequence[Scores]:
        """For each task: one score per episode, or the failure of a reward."""
        return await asyncio.to_thread(self._score, played)

    def _score(self, played: Sequence[PlayedTask]) -> list[Scores]:
        results: dict[str, Scores] = {}
        for batch in self._batches(played):
            results.update(score_batch(self.pipelines(batch[0].task), batch))
        return [results.get(one.task.task_id, ()) for one in played]

    def _batches(self, played: Sequence[PlayedTask]) -> Iterator[list[PlayedTask]]:
        """Tasks that are scored in one call; those without any episode are left out."""
        batches: dict[tuple[object, ...], list[PlayedTask]] = {}
        for one in played:
            if one.episodes:
                apart = (one.task.task_id,) if self.apart else ()
                batches.setdefault((id(self.pipelines(one.task)), *apart), []).append(one)
        yield from batches.values()


def score_batch(pipeline: RewardPipeline, batch: Sequence[PlayedTask]) -> dict[str, Scores]:
    """The scores of some tasks in one call of their rewards, by task id."""
    episodes = [(one.task, episode) for one in batch for episode in one.episodes]
    try:
        scores = iter(_score_reachable(pipeline, episodes))
    except RewardError as error:
        failure = Failure(kind="data", message=str(error))
        return {one.task.task_id: failure for one in batch}
    return {one.task.task_id: tuple(next(scores) for _ in one.episodes) for one in batch}


def _score_reachable(
    pipeline: RewardPipeline, episodes: Sequence[tuple[Task, Episode]]
) -> list[Score | Failure]:
    """One score an episode; the failure of what lies outside for those that a reward could not get at.

    The others are scored together, as if they had been alone from the start. Raises RewardError.
    """
    found: dict[int, Score | Failure] = {}
    costs: list[dict[str, float]] = [{} for _ in episodes]
    for round_ in range(ROUNDS_MAX):
        left = [place for place in range(len(episodes)) if place not in found]
        try:
            scored = _call(pipeline, [episodes[place] for place in left])
        except RewardUnavailable as error:
            # After the last round nobody knows who else is out of reach.
            lost = error.lost if round_ + 1 < ROUNDS_MAX else range(len(left))
            failure = Failure(kind="infrastructure", message=str(error))
            for place, spent in zip(left, error.costs, strict=bool(error.costs)):
                costs[place] = add_costs(costs[place], spent)
            found |= {left[place]: failure for place in lost}
        else:
            for place, score in zip(left, scored, strict=True):
                found[place] = replace(score, costs=add_costs(costs[place], score.costs))
            break
    return [found[place] for place in range(len(episodes))]


def _call(pipeline: RewardPipeline, episodes: Sequence[tuple[Task, Episode]]) -> list[Score]:
    batch = RewardBatch(
        prompts=[prompt_of(episode) for _, episode in episodes],
        completions=[completion_of(episode) for _, episode in episodes],
        rows=[task.row for task, _ in episodes],
        groups=[task.task_id for task, _ in episodes],
    )
    return [
        Score(
            rewards={**one.parts, **_signals(episode)},
            reward=_held_down(episode, one.total),
            costs=one.costs,
        )
        for (_, episode), one in zip(episodes, pipeline.judge(batch), strict=True)
    ]


def add_costs(before: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """What two tries cost together."""
    return {name: before.get(name, 0.0) + more.get(name, 0.0) for name in {**before, **more}}


def _signals(episode: Episode) -> dict[str, float]:
    """What the environment told of the episode beside its reward: recorded, and weighed by nobody."""
    return {f"environment/{name}": float(value) for name, value in episode.signals.items()}


def _held_down(episode: Episode, reward: float) -> float:
    """A reply that its environment cannot get to the end of earns nothing, whatever it says."""
    return min(reward, 0.0) if episode.ending == OUT_OF_TIME else reward


def prompt_of(episode: Episode) -> tuple[Message, ...]:
    """The conversation before the policy's last reply."""
    return episode.messages[:-1]


def completion_of(episode: Episode) -> Completion:
    """The episode as a reward sees it: its last reply as text, all its tokens after the prompt."""
    return Completion(
        token_ids=episode.token_ids,
        logprobs=episode.logprobs,
        finish="length" if episode.ending == "length" else "stop",
        text=episode.reply,
        spans=episode.spans,
        turn_rewards=tuple(one or 0.0 for one in episode.turn_rewards),
        choice_logprobs=episode.choice_logprobs,
    )
