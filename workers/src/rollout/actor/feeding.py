"""Keeping an engine full: while groups are played, more are asked for between two water marks.

Without it an actor asks only when all that it had has ended, and the engine idles behind the longest sample of every
claim. What comes and is not of the round (other weights, a task that this round knows already) is put aside: the
round is fed no more, ends, and the next one begins with it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rollout.actor.finishing import Finishing
from rollout.protocol.messages import Task

ASK_AGAIN_SECONDS = 1.0
"""How soon to ask again after an answer with less than was asked for."""
ASK_MAX = 256
"""Groups to ask for at once."""

ClaimMore = Callable[[int], Awaitable[Sequence[Task]]]
"""Up to so many more tasks, those that are there now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterMarks:
    """Groups in play: at ``low`` or below, as many are asked for as make ``high``."""

    low: int
    high: int

    def lacking(self, num_in_play: int) -> int:
        """How many groups to ask for now; 0 while there are enough."""
        if num_in_play > self.low:
            return 0
        return min(ASK_MAX, max(0, self.high - num_in_play))


def plan_marks(tasks_at_once: int) -> WaterMarks:
    """Marks for an engine that so many groups fill: it never waits for a call, and little waits in it."""
    return WaterMarks(low=-(-3 * tasks_at_once // 2), high=2 * tasks_at_once)


class Feeding:
    """One round of tasks of one version; ``marks`` None: it is never fed."""

    def __init__(
        self,
        first: Sequence[Task],
        marks: WaterMarks | None,
        claim: ClaimMore,
        finishing: Finishing,
    ) -> None:
        self._marks, self._claim, self._finishing = marks, claim, finishing
        self._version = first[0].version
        self._tasks = {task.task_id: task for task in first}
        self._ask_at = 0.0
        self.aside: tuple[Task, ...] = ()

    @property
    def left(self) -> list[Task]:
        """What this round was given and has not ended."""
        ended = self._finishing.task_ids
        self._tasks = {name: task for name, task in self._tasks.items() if name not in ended}
        return list(self._tasks.values())

    async def more(self, num_in_play: int) -> list[Task]:
        """Tasks to begin beside the ``num_in_play`` groups that are played.

        What has ended and is not submitted counts as in play, so that it cannot pile up. Raises what claiming and
        submitting raise.
        """
        self._finishing.check()
        in_hand = num_in_play + self._finishing.num_waiting
        lacking = 0 if self._marks is None else self._marks.lacking(in_hand)
        if self.aside or not lacking or time.monotonic() < self._ask_at:
            return []
        claimed = await self._claim(lacking)
        if len(claimed) < lacking:
            self._ask_at = time.monotonic() + ASK_AGAIN_SECONDS
        mine = [task for task in claimed if self._is_of_the_round(task)]
        self.aside = tuple(task for task in claimed if task not in mine)
        self._tasks = {task.task_id: task for task in (*self.left, *mine)}
        self._finishing.enter(mine)
        return mine

    def _is_of_the_round(self, task: Task) -> bool:
        """A task whose lease ran out may come again under another epoch, its first attempt still in play."""
        known = task.task_id in self._tasks or task.task_id in self._finishing.task_ids
        return task.version == self._version and task.kind == "eval" and not known
