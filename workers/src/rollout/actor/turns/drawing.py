"""Where samples wait for the engine's reply.

An engine that is fed continuously takes each sample as it comes. Any other takes one batch at a time: all that
waits when it is free, after a moment in which others may join. In Exact the members of a group meet at a barrier every
turn, so that what an engine is asked for a group at once depends on the group alone; which groups share a call
changes no token (slots are fixed).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rollout.actor.episodes import Episode, TurnGroup, plan_turn
from rollout.actor.held_tasks import HeldTasks
from rollout.errors import EngineError
from rollout.protocol.messages import Task
from rollout.seams import Engine
from rollout.types import Completion

LINGER_SECONDS = 0.01
"""How long a batch waits for others at least, once the engine is free and one sample has come."""
LINGER_SHARE = 0.05
"""And at most this share of what the last batch took."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """One sample that wants a reply; ``place`` orders samples of a batch: group by group, sample by sample."""

    place: tuple[int, int]
    task: Task
    episode: Episode
    answer: asyncio.Future[Completion]


class Drawer:
    """One engine's queue. ``enter`` every sample before it draws, ``leave`` when it draws no more."""

    def __init__(self, engine: Engine, hand: HeldTasks, *, exact: bool, continuous: bool) -> None:
        self._engine, self._hand = engine, hand
        self._exact, self._continuous = exact, continuous
        self._present: Counter[str] = Counter()
        self._sizes: dict[str, int] = {}
        self._places: dict[str, int] = {}
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._free_at, self._last_seconds = time.monotonic(), 0.0
        self._aborted = 0
        self._serving: asyncio.Task[None] | None = None

    def enter(self, task: Task) -> None:
        """All samples of a task are in play from now on."""
        self._present[task.task_id] = self._sizes[task.task_id] = task.num_samples
        self._places[task.task_id] = max(self._places.values(), default=-1) + 1

    def leave(self, task: Task) -> None:
        """One sample of a task draws no more."""
        self._present[task.task_id] -= 1
        if not self._present[task.task_id]:
            del self._present[task.task_id], self._places[task.task_id], self._sizes[task.task_id]
        self._wake.set()

    async def draw(self, task: Task, episode: Episode) -> Completion:
        """The reply of one sample's present turn. Raises EngineError, also when all are given up."""
        if self._continuous:
            (group,) = plan_turn([episode], task.sampling)
            ((completion,),) = await self._generate([group])
        else:
            completion = await self._queue(task, episode)
        self._count(completion)
        return completion

    async def close(self) -> None:
        """Begin no more batches; idempotent."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})

    def release(self, task_id: str) -> list[int]:
        """The samples of a task that wait and are not being drawn, which nobody will draw any more."""
        let_go = [one for one in self._waiting if one.task.task_id == task_id]
        self._waiting = [one for one in self._waiting if one.task.task_id != task_id]
        return [one.episode.sample for one in let_go]

    def _count(self, completion: Completion) -> None:
        self._aborted = self._aborted + 1 if completion.finish == "aborted" else 0
        if self._aborted and self._aborted >= sum(self._sizes.values()):
            raise EngineError(f"the engine gave up on every sample of {len(self._sizes)} tasks")

    async def _queue(self, task: Task, episode: Episode) -> Completion:
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        waiting = _Waiting(
            place=(self._places[task.task_id], episode.sample),
            task=task,
            episode=episode,
            answer=asyncio.get_running_loop().create_future(),
        )
        self._waiting.append(waiting)
        self._wake.set()
        try:
            return await waiting.answer
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiting)

    async def _serve(self) -> None:
        while True:
            batch = await self._next_batch()
            try:
                await self._draw_batch(batch)
            except Exception as error:  # noqa: BLE001 - it is the answer to all of them
                for one in batch:
                    if not one.answer.done():
                        one.answer.set_exception(error)

    async def _next_batch(self) -> list[_Waiting]:
        """All that may be drawn together, when it is time."""
        while not self._ready():
            await self._changed(None)
        since = max(time.monotonic(), self._free_at)
        until = since + max(LINGER_SECONDS, LINGER_SHARE * self._last_seconds)
        while len(self._waiting) < sum(self._present.values()):
            left = until - time.monotonic()
            if left <= 0:
                break
            await self._changed(left)
        ready = self._ready()
        self._waiting = [one for one in self._waiting if one not in ready]
        return ready

    async def _changed(self, seconds: float | None) -> None:
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _ready(self) -> list[_Waiting]:
        """What may be drawn now: in Exact, of whole groups only."""
        here = Counter(one.task.task_id for one in self._waiting)
        whole = {name for name, number in here.items() if number >= self._present[name]}
        ready = [one for one in self._waiting if not self._exact or one.task.task_id in whole]
        return sorted(ready, key=lambda one: one.place)

    async def _draw_batch(self, batch: Sequence[_Waiting]) -> None:
        answers = {(one.task.task_id, one.episode.sample): one.answer for one in batch}
        groups = [
            group
            for sampling in dict.fromkeys(one.task.sampling for one in batch)
            for group in plan_turn(
                [one.episode for one in batch if one.task.sampling == sampling], sampling
            )
        ]
        began = time.monotonic()
        drawn = await self._generate(groups)
        self._free_at = time.monotonic()
        self._last_seconds = self._free_at - began
        for group, completions in zip(groups, drawn, strict=True):
            for episode, completion in zip(group.episodes, completions, strict=True):
                answer = answers[episode.task_id, episode.sample]
                if not answer.done():
                    answer.set_result(completion)

    async def _generate(self, groups: Sequence[TurnGroup]) -> Sequence[Sequence[Completion]]:
        self._hand.drawing = (*self._hand.drawing, *groups)
        try:
            return await self._engine.generate([group.request for group in groups])
        finally:
            mine = set(map(id, groups))
            self._hand.drawing = tuple(one for one in self._hand.drawing if id(one) not in mine)
