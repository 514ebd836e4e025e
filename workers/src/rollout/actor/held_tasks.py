"""What an actor has in hand: which samples are being drawn, and which tasks it was told to let go of.

A task is *returned* (to be given to another actor, with what there is of it) or *dropped* (it is
somebody else's by now). Either interrupts the engine; what is to be kept goes on at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rollout.actor.episodes import TurnGroup
from rollout.protocol.messages import TaskProgress
from rollout.seams import SampleProgress


class HeldTasks:
    """``interrupt`` makes the engine return soon; ``drawing`` is what it was asked for."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._returned: set[str] = set()
        self._dropped: set[str] = set()
        self._everything = False
        self._listeners: list[Callable[[], None]] = []
        self.drawing: tuple[TurnGroup, ...] = ()

    def listen(self, told: Callable[[], None]) -> None:
        """Call ``told`` whenever something is to be returned or dropped."""
        self._listeners.append(told)

    def forget(self, told: Callable[[], None]) -> None:
        """Call it no more."""
        self._listeners.remove(told)

    def _tell(self) -> None:
        for told in tuple(self._listeners):
            told()

    def return_all(self) -> None:
        """Everything is to be returned, from now on."""
        self._everything = True
        self._interrupt()
        self._tell()

    def give_back(self, task_ids: Iterable[str]) -> None:
        """These tasks are to be returned."""
        new = set(task_ids) - self._returned
        self._returned |= new
        if new & self._drawn():
            self._interrupt()
        if new:
            self._tell()

    def drop(self, task_ids: Iterable[str]) -> None:
        """These tasks belong to somebody else."""
        new = set(task_ids) - self._dropped
        self._dropped |= new
        if new & self._drawn():
            self._interrupt()
        if new:
            self._tell()

    def begin(self) -> None:
        """New tasks are in hand: what was said of others is done."""
        self._returned.clear()
        self._dropped.clear()

    def is_dropped(self, task_id: str) -> bool:
        """Whether nobody wants to hear of this task."""
        return task_id in self._dropped

    def is_returned(self, task_id: str) -> bool:
        """Whether somebody else is to go on with it."""
        return self._everything or task_id in self._returned

    def _drawn(self) -> set[str]:
        return {group.episodes[0].task_id for group in self.drawing}

    def describe(self, states: Sequence[Sequence[SampleProgress]]) -> tuple[TaskProgress, ...]:
        """What is being drawn, task by task, from what the engine says of it."""
        found: dict[str, TaskProgress] = {}
        for group, row in zip(self.drawing, states, strict=False):
            first = group.episodes[0]
            before = found.get(first.task_id)
            running = tuple(
                len(episode.token_ids) + state.num_tokens
                for episode, state in zip(group.episodes, row, strict=False)
                if state.state == "running" or (state.state == "queued" and episode.token_ids)
            )
            queued = sum(
                state.state == "queued" and not episode.token_ids
                for episode, state in zip(group.episodes, row, strict=False)
            )
            found[first.task_id] = TaskProgress(
                task_id=first.task_id,
                running=running if before is None else before.running + running,
                num_queued=queued if before is None else before.num_queued + queued,
                prompt_tokens=len(first.prompt_ids),
            )
        return tuple(found.values())
