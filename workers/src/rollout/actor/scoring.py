"""Rewards of episodes that have ended, by the pipeline that belongs to each task.

A reward that raises, hangs or returns no finite number is the task's failure, of kind ``data``: the
coordinator has it tried once more and then stops the run with the message. It is never a reward of 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rollout.actor.episodes import Episode, Score
from rollout.actor.play import Played
from rollout.coordinator.messages import Failure, Task
from rollout.errors import RewardError
from rollout.rewards.pipeline import RewardPipeline
from rollout.types import Completion, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineScorer:
    """Scores claimed tasks.

    ``apart`` True calls the rewards once per task, so that no score can depend on what else was
    claimed; False calls them once per pipeline for all tasks, which a slow reward may batch.
    """

    pipelines: Callable[[Task], RewardPipeline]
    apart: bool

    async def score(self, played: Sequence[Played]) -> Sequence[tuple[Score, ...] | Failure]:
        """For each task: one score per episode, or the failure of a reward."""
        return await asyncio.to_thread(self._score, played)

    def _score(self, played: Sequence[Played]) -> list[tuple[Score, ...] | Failure]:
        results: dict[str, tuple[Score, ...] | Failure] = {}
        for batch in self._batches(played):
            results.update(score_batch(self.pipelines(batch[0].task), batch))
        return [results.get(one.task.task_id, ()) for one in played]

    def _batches(self, played: Sequence[Played]) -> Iterator[list[Played]]:
        """Tasks that are scored in one call; those without any episode are left out."""
        batches: dict[tuple[object, ...], list[Played]] = {}
        for one in played:
            if one.episodes:
                apart = (one.task.task_id,) if self.apart else ()
                batches.setdefault((id(self.pipelines(one.task)), *apart), []).append(one)
        yield from batches.values()


def score_batch(
    pipeline: RewardPipeline, batch: Sequence[Played]
) -> dict[str, tuple[Score, ...] | Failure]:
    """The scores of some tasks in one call of their rewards, by task id."""
    episodes = [(one.task, episode) for one in batch for episode in one.episodes]
    try:
        scored = pipeline.score(
            [prompt_of(episode) for _, episode in episodes],
            [completion_of(episode) for _, episode in episodes],
            [task.row for task, _ in episodes],
        )
    except RewardError as error:
        failure = Failure(kind="data", message=str(error))
        return {one.task.task_id: failure for one in batch}
    scores = iter(Score(rewards=parts, reward=total) for total, parts in scored)
    return {one.task.task_id: tuple(next(scores) for _ in one.episodes) for one in batch}


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
    )
