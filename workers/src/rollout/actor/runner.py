"""Plays the episodes of claimed tasks turn by turn, all of them in one engine call a turn.

What environments do is their own side's (``environment_turns``). A reply that the engine gave up costs one
sample; the others are played to their end. What the engine raises is the caller's to handle. Whatever
happens, every environment is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from rollout.actor.environment_turns import answer_all, begin_all, close_all
from rollout.actor.episodes import Episode, plan_turn, take_completion, take_part
from rollout.actor.held_tasks import HeldTasks
from rollout.actor.table import RETURNED, EpisodeTable, OneAtATime, PlayedTask, RunnerParts
from rollout.errors import EngineError
from rollout.protocol.messages import Task
from rollout.seams import TextEnv
from rollout.types import Completion

__all__ = ["RETURNED", "PlayedTask", "RunnerParts", "play", "play_each"]

HandBack = Callable[[Sequence[PlayedTask]], Awaitable[None]]
"""Told at once of tasks that are let go, while the others go on."""
Ended = Callable[[Sequence[PlayedTask]], None]
"""Told at once of tasks whose episodes have all ended, while the others go on."""


async def play(
    tasks: Sequence[Task],
    stage: RunnerParts,
    hand: HeldTasks | None = None,
    hand_back: HandBack | None = None,
) -> tuple[PlayedTask, ...]:
    """Every task's episodes to their end, in the order of ``tasks``, without those that were let go.

    All tasks must want one version, the one loaded. Raises EngineError, and what ``hand_back`` raises.
    """
    ended: dict[str, PlayedTask] = {}

    def keep(played: Sequence[PlayedTask]) -> None:
        ended.update((one.task.task_id, one) for one in played)

    await play_each(tasks, stage, keep, hand, hand_back)
    return tuple(ended[task.task_id] for task in tasks if task.task_id in ended)


async def play_each(
    tasks: Sequence[Task],
    stage: RunnerParts,
    ended: Ended,
    hand: HeldTasks | None = None,
    hand_back: HandBack | None = None,
) -> None:
    """``play``, but ``ended`` is told of every task with the turn that was its last: each once."""
    table, hand = EpisodeTable(tasks), hand or HeldTasks(stage.engine.interrupt)
    stage = replace(stage, renderer=OneAtATime(stage.renderer))
    closing = _Closing(table)
    try:
        await begin_all(table, stage)
        while True:
            await _let_go(table, stage, hand, hand_back)
            if played := table.take_ended():
                ended(played)
            closing.begin()
            if not (going := table.going()):
                return
            await _policy_turn(table, going, stage, hand)
            await answer_all(table, going, stage)
    finally:
        await closing.finish()


class _Closing:
    """Environments that are closed while others are played: a slow one holds nobody up."""

    def __init__(self, table: EpisodeTable) -> None:
        self._table = table
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Close what nothing is asked of any more."""
        self._start(self._table.take_idle())

    async def finish(self) -> None:
        """Close everything; bounded, as each of them is. Raises EngineError as ``call_each``."""
        self._start(self._table.take_all())
        await asyncio.gather(*self._tasks)

    def _start(self, environments: Sequence[TextEnv]) -> None:
        if any(hasattr(one, "close") for one in environments):
            self._tasks.append(asyncio.create_task(close_all(environments)))


async def _let_go(
    table: EpisodeTable, stage: RunnerParts, hand: HeldTasks, hand_back: HandBack | None
) -> None:
    """Part with what is wanted elsewhere; a group whose samples have all ended is kept, and scored."""
    returned: list[PlayedTask] = []
    for task in table.unfinished():
        if hand.is_dropped(task.task_id):
            table.let_go(task, keeps_prefixes=False)
        elif hand.is_returned(task.task_id):
            returned.append(table.let_go(task, keeps_prefixes=stage.keeps_prefixes))
    if returned and hand_back is not None:
        await hand_back(returned)


async def _policy_turn(
    table: EpisodeTable, going: Sequence[Episode], stage: RunnerParts, hand: HeldTasks
) -> None:
    """One reply for every episode that goes on. All tasks of a claim sample alike or are apart."""
    groups = [
        group
        for sampling in dict.fromkeys(table.tasks[one.task_id].sampling for one in going)
        for group in plan_turn(
            [one for one in going if table.tasks[one.task_id].sampling == sampling], sampling
        )
    ]
    hand.drawing = tuple(groups)
    try:
        answers = await stage.engine.generate([group.request for group in groups])
    finally:
        hand.drawing = ()
    if all(one.finish == "aborted" for completions in answers for one in completions):
        raise EngineError(f"the engine gave up on every sample of {len(table.tasks)} tasks")
    for group, completions in zip(groups, answers, strict=True):
        for episode, completion in zip(group.episodes, completions, strict=True):
            _take_reply(table, episode, completion, stage)


def _take_reply(
    table: EpisodeTable, episode: Episode, completion: Completion, stage: RunnerParts
) -> None:
    task = table.tasks[episode.task_id]
    if completion.finish == "aborted":
        table.lose(task, episode.sample, "the engine gave up on it")
        return
    if completion.finish == "interrupted":
        part = take_part(episode, completion, task.version)
        table.put(replace(part, seed=stage.noise(part, task)))
        return
    said = episode.token_ids[len(episode.token_ids) - episode.begun :] + completion.token_ids
    table.put(take_completion(episode, completion, said, stage.renderer, task))
