"""Results of tasks, and cut into calls that the coordinator takes, by their encoded size. Pure.

A group is written whole, so that it travels in one call. One that no call can carry is no accident of a
machine: it is the task's failure, of kind ``data``, and names what to lower. Beginnings of samples that no
call can carry are left behind: the samples start over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import UNSET

from rollout.actor.episodes import Episode, Score
from rollout.actor.parts import PlayedTask
from rollout.actor.turns.rows import row_of
from rollout.protocol.messages import Failure, Submit, TaskResult
from rollout.protocol.routes import SUBMIT
from rollout.types import Message, Row, Trajectory

CALL_BYTES = 32 << 20
"""Where a call is full: a fraction of what the coordinator holds at once, of all actors together."""
GROUP_BYTES_MAX = SUBMIT.body_bytes_max - 1024
"""What one result may have; the rest is what Submit itself is written with."""


def plan_submits(results: Sequence[TaskResult]) -> Iterator[Submit]:
    """The calls that carry ``results``, in order; each is full, or the last."""
    taken: list[TaskResult] = []
    size = 0
    for result in results:
        fitting, added = fit_result(result)
        if taken and size + added > CALL_BYTES:
            yield Submit(results=tuple(taken))
            taken, size = [], 0
        taken.append(fitting)
        size += added
    if taken:
        yield Submit(results=tuple(taken))


def fit_result(result: TaskResult, bytes_max: int = GROUP_BYTES_MAX) -> tuple[TaskResult, int]:
    """The result, or what is said in its place where it is larger than any call may be; and its size."""
    size = _count_bytes(result)
    if size <= bytes_max:
        return result, size
    small = _leave_out(result, size, bytes_max)
    return small, _count_bytes(small)


def _leave_out(result: TaskResult, size: int, bytes_max: int) -> TaskResult:
    if result.prefixes:
        return msgspec.structs.replace(result, prefixes=())
    longest = max(result.trajectories, key=lambda one: one.num_tokens)
    message = (
        f"the {len(result.trajectories)} samples of task {result.task_id} are {size} bytes, one call takes"
        f" {bytes_max}; the longest is sample {longest.sample} with {longest.num_tokens} tokens: lower"
        " sampling.maxNewTokens or the samples per prompt, or have the environment say less"
    )
    return TaskResult(
        task_id=result.task_id,
        epoch=result.epoch,
        failure=Failure(kind="data", message=message),
    )


def count_tokens(results: Sequence[TaskResult]) -> int:
    """Tokens after the prompts, for a guess of how long planning takes."""
    made = sum(one.num_tokens for result in results for one in result.trajectories)
    return made + sum(len(one.token_ids) for result in results for one in result.prefixes)


def _count_bytes(result: TaskResult) -> int:
    return len(msgspec.msgpack.encode(result))


def hand_over(one: PlayedTask) -> TaskResult:
    """A task that somebody else is to go on with."""
    return TaskResult(
        task_id=one.task.task_id,
        epoch=one.task.epoch,
        failure=one.failure,
        prefixes=one.prefixes,
    )


def finish_task(
    played: PlayedTask,
    scores: tuple[Score | Failure, ...] | Failure,
    timings: dict[str, float],
    plugins: Mapping[str, str] | None = None,
) -> TaskResult:
    """The result of one attempt: the trajectory of every sample that was scored, and what failed.

    ``plugins``: digests of those that played and scored it, where they may change.
    """
    task = played.task
    if isinstance(scores, Failure):
        return TaskResult(task_id=task.task_id, epoch=task.epoch, failure=scores)
    trajectories = tuple(
        finish_trajectory(episode, task.row, score, timings, plugins)
        for episode, score in zip(played.episodes, scores, strict=True)
        if isinstance(score, Score)
    )
    lost = next((score for score in scores if isinstance(score, Failure)), None)
    return TaskResult(
        task_id=task.task_id,
        epoch=task.epoch,
        trajectories=trajectories,
        failure=played.failure or lost,
    )


def finish_trajectory(
    episode: Episode,
    row: Row,
    score: Score,
    timings: dict[str, float],
    plugins: Mapping[str, str] | None = None,
) -> Trajectory:
    """The immutable record of an episode that has ended."""
    first, *further = episode.rows or (row_of(episode),)
    return Trajectory(
        ordinal=episode.ordinal,
        sample=episode.sample,
        prompt_ids=first.prompt_ids,
        token_ids=first.token_ids,
        actor_logprobs=first.actor_logprobs,
        loss_mask=first.loss_mask,
        spans=first.spans,
        rewards=score.rewards,
        reward=score.reward,
        ending=episode.ending or "stop",
        text=episode.reply,
        prompt_text=_prompt_text(episode.messages),
        answer=str(row.get("answer", "")),
        timings=timings,
        retokenised=episode.retokenised,
        costs=score.costs,
        routes=first.routes,
        plugins=UNSET if plugins is None else plugins,
        branches=tuple(further) or UNSET,
        memory=episode.writes or UNSET,
    )


def _prompt_text(messages: Sequence[Message]) -> str:
    """What was said before the policy first spoke, for people."""
    first = next((i for i, one in enumerate(messages) if one.role == "assistant"), len(messages))
    return "\n".join(message.text for message in messages[:first])
