"""Plays claimed tasks: each sample's episode by itself, groups reported as they end.

What one episode does is its group's (``turns``). What the engine raises ends the playing of everything; whatever
happens, every environment is closed. Tasks may be added while others are played.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from rollout.actor.held_tasks import HeldTasks
from rollout.actor.parts import RETURNED, PlayedTask, RunnerParts
from rollout.actor.turns.drawing import Drawer
from rollout.actor.turns.environment_turns import Closing
from rollout.actor.turns.group import GroupInPlay
from rollout.protocol.messages import Task

__all__ = ["RETURNED", "GroupPlayer", "PlayedTask", "RunnerParts", "play", "play_each"]

FEED_SECONDS = 1.0
"""How often more tasks are asked for at least, while no group ends."""
TOGETHER_SECONDS = 0.005
"""Groups that end within so long are reported together: rewards and calls take them in one."""

HandBack = Callable[[Sequence[PlayedTask]], Awaitable[None]]
"""Told at once of tasks that are let go, while the others go on."""
Ended = Callable[[Sequence[PlayedTask]], None]
"""Told at once of tasks whose episodes have all ended, while the others go on."""
More = Callable[[int], Awaitable[Sequence[Task]]]
"""Asked, with the number of groups in play or just ended, for tasks to begin beside them; soon and again while any are played."""


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
    more: More | None = None,
) -> None:
    """``play``, but ``ended`` is told of every task as it ends: each once. ``more`` adds to them. Raises what it raises."""
    player = GroupPlayer(stage, ended, hand or HeldTasks(stage.engine.interrupt), hand_back)
    try:
        player.add(tasks)
        while more is not None and player.num_groups:
            player.add(await more(player.num_groups + player.num_untold))
            await player.advance(FEED_SECONDS)
        await player.settle()
    finally:
        await player.close()


class GroupPlayer:
    """Groups in play on one engine, all of one version. ``close`` whatever happened."""

    def __init__(
        self, stage: RunnerParts, ended: Ended, hand: HeldTasks, hand_back: HandBack | None
    ) -> None:
        self._stage, self._ended, self._hand, self._hand_back = stage, ended, hand, hand_back
        self._drawer = Drawer(
            stage.engine, hand, exact=not stage.keeps_prefixes, continuous=stage.continuous
        )
        self._closing = Closing()
        self._playing: set[asyncio.Task[None]] = set()
        self._done: list[PlayedTask] = []
        self._returned: list[PlayedTask] = []
        self._telling: asyncio.TimerHandle | None = None

    @property
    def num_groups(self) -> int:
        """Groups that have not ended."""
        return len(self._playing)

    @property
    def num_untold(self) -> int:
        """Groups that have ended, which nobody was told of yet."""
        return len(self._done)

    def add(self, tasks: Sequence[Task]) -> None:
        """Begin these, beside those that are played."""
        self._playing |= {asyncio.create_task(self._play(task)) for task in tasks}

    async def advance(self, seconds: float | None = None) -> None:
        """Wait until a group has ended, so long at most. Raises EngineError, and what ``hand_back`` raises."""
        if self._playing:
            playing = set(self._playing)
            done, _ = await asyncio.wait(
                playing, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            self._playing -= done
            for one in done:
                one.result()
        if self._returned or not self._playing:
            await self._tell()

    async def settle(self) -> None:
        """Play everything to its end, or until it is let go. Raises as ``advance``."""
        while self._playing:
            await self.advance()
        await self._tell()

    async def close(self) -> None:
        """Give up what still goes on, tell what has ended, and close every environment; idempotent."""
        for one in self._playing:
            one.cancel()
        if self._playing:
            await asyncio.wait(self._playing)
        self._tell_ended()
        await self._drawer.close()
        await self._closing.finish()

    async def _play(self, task: Task) -> None:
        room = self._stage.room
        async with contextlib.nullcontext() if room is None else room.of(task.num_samples):
            group = GroupInPlay(task, self._stage, self._drawer, self._closing, self._hand)
            played = await group.play()
        if played is None:
            return
        if played.failure is RETURNED:
            self._returned.append(played)
        else:
            self._done.append(played)
            if self._telling is None:
                loop = asyncio.get_running_loop()
                self._telling = loop.call_later(TOGETHER_SECONDS, self._tell_ended)

    def _tell_ended(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        self._telling = None
        done, self._done = self._done, []
        if done:
            self._ended(done)

    async def _tell(self) -> None:
        self._tell_ended()
        returned, self._returned = self._returned, []
        if returned and self._hand_back is not None:
            await self._hand_back(returned)
