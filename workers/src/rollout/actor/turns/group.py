"""One task in play: a coroutine for each of its samples, from the start of its environment to its ending.

A sample that infrastructure takes is lost by itself; a task whose row or environment is wrong is given up whole. Told
to hand the task back, samples stop at their next boundary and what there is of them becomes prefixes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from rollout.actor.continuation import build_prefix
from rollout.actor.episodes import Episode, take_completion, take_numbers, take_part
from rollout.actor.held_tasks import HeldTasks
from rollout.actor.parts import RETURNED, PlayedTask, RunnerParts
from rollout.actor.turns import environment_turns
from rollout.actor.turns.drawing import Drawer
from rollout.actor.turns.environment_turns import Closing, Prompts, SampleEnvironment
from rollout.environments.threads import Overdue
from rollout.errors import EngineError, InfrastructureError
from rollout.protocol.messages import Failure, Task

log = logging.getLogger(__name__)

PARTING_SECONDS = 2.0
"""How long environments may still answer once their task is to be handed back."""


class GroupInPlay:
    """One task's episodes; ``play`` once."""

    def __init__(
        self, task: Task, stage: RunnerParts, drawer: Drawer, closing: Closing, hand: HeldTasks
    ) -> None:
        self._task, self._stage = task, stage
        self._drawer, self._closing, self._hand = drawer, closing, hand
        self._episodes: dict[int, Episode] = {}
        self._lost: dict[int, str] = {}
        self._failure: Failure | None = None
        self._num_late = 0
        self._prompts: Prompts = {}
        self._samples: dict[int, asyncio.Task[None]] = {}
        self._drawing: set[int] = set()
        self._returning = False
        drawer.enter(task)

    async def play(self) -> PlayedTask | None:
        """The task after its episodes, or handed back; None when it is somebody else's. Raises EngineError."""
        self._samples = {
            sample: asyncio.create_task(self._play_sample(sample))
            for sample in range(self._task.num_samples)
        }
        for one in self._samples.values():
            one.add_done_callback(lambda _: self._drawer.leave(self._task))
        self._hand.listen(self._told)
        self._told()
        try:
            await asyncio.wait(self._samples.values(), return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self._hand.forget(self._told)
            self._stop()
            await asyncio.wait(self._samples.values())
        for one in self._samples.values():
            if not one.cancelled() and (error := one.exception()) is not None:
                raise error
        return None if self._hand.is_dropped(self._task.task_id) else self._outcome()

    def _told(self) -> None:
        """Heed what is said of this task."""
        if self._hand.is_dropped(self._task.task_id):
            self._stop()
        elif self._hand.is_returned(self._task.task_id) and not self._returning:
            self._returning = True
            for sample in self._drawer.release(self._task.task_id):
                self._samples[sample].cancel()
            asyncio.get_running_loop().call_later(PARTING_SECONDS, self._part)

    def _part(self) -> None:
        for sample, one in self._samples.items():
            if sample not in self._drawing:
                one.cancel()

    def _stop(self) -> None:
        for one in self._samples.values():
            one.cancel()

    async def _play_sample(self, sample: int) -> None:
        environment = SampleEnvironment(
            self._task, sample, self._stage, self._prompts, self._closing
        )
        try:
            await self._play_turns(sample, environment)
        except (EngineError, asyncio.CancelledError):
            raise
        except InfrastructureError as error:
            self._lost[sample] = str(error)
        except Exception as error:  # noqa: BLE001 - users' code: it is the task's failure, by name
            when = "after a reply" if sample in self._episodes else "at the start of an episode"
            self._fail(f"environment, {when}: {self._describe(error)}")
        finally:
            environment.close()

    async def _play_turns(self, sample: int, environment: SampleEnvironment) -> None:
        try:
            self._episodes[sample] = await environment.begin()
        except Overdue as error:
            self._start_late(sample, error)
            return
        while (episode := self._episodes[sample]).ending is None and not self._returning:
            replied = await self._draw(episode)
            self._episodes[sample] = replied
            if replied.ending is None and replied.turn > episode.turn:
                self._episodes[sample] = await environment.answer(replied)
        if episode.ending is not None:
            self._episodes[sample] = environment.finished(episode)

    async def _draw(self, episode: Episode) -> Episode:
        """The episode after the policy's turn, or after what an interruption left of it."""
        self._drawing.add(episode.sample)
        try:
            completion = await self._drawer.draw(self._task, episode)
        finally:
            self._drawing.discard(episode.sample)
        if completion.finish == "aborted":
            raise InfrastructureError("the engine gave up on it")
        if completion.numbers:
            return take_numbers(episode, completion.numbers)
        if completion.finish == "interrupted":
            part = take_part(episode, completion, self._task.version)
            return replace(part, seed=self._stage.noise(part, self._task))
        before = episode.token_ids[len(episode.token_ids) - episode.begun :]
        said = before + completion.token_ids
        return take_completion(
            episode,
            completion,
            said,
            self._stage.renderer,
            sampling=self._task.sampling,
            version=self._task.version,
        )

    def _start_late(self, sample: int, error: Overdue) -> None:
        self._lost[sample] = f"the environment did not start: {error}"
        self._num_late += 1
        if self._num_late == self._task.num_samples:
            seconds = environment_turns.ENVIRONMENT_SECONDS_MAX
            self._fail(f"the environment did not answer in {seconds:g} s")

    def _fail(self, message: str) -> None:
        """Give up the whole task: its data or the user's code is wrong."""
        self._failure = self._failure or Failure(kind="data", message=message)
        self._stop()

    def _describe(self, error: Exception) -> str:
        row = ", ".join(f"{key}={value!r:.40}" for key, value in list(self._task.row.items())[:4])
        return f"{type(error).__name__}: {error} (ordinal {self._task.ordinal}, row {{{row}}})"

    def _outcome(self) -> PlayedTask:
        task, episodes = self._task, self._episodes
        if self._failure is not None:
            return PlayedTask(task=task, failure=self._failure)
        kept = [episodes[n] for n in sorted(episodes) if n not in self._lost]
        if len(kept) + len(self._lost) == task.num_samples and all(one.ending for one in kept):
            return PlayedTask(task=task, episodes=tuple(kept), failure=_describe_lost(self._lost))
        begun = kept if self._stage.keeps_prefixes else []
        prefixes = tuple(prefix for one in begun if (prefix := build_prefix(one)) is not None)
        return PlayedTask(task=task, failure=RETURNED, prefixes=prefixes)


def _describe_lost(lost: Mapping[int, str]) -> Failure | None:
    if not lost:
        return None
    first = min(lost)
    message = f"{len(lost)} samples lost, first sample {first}: {lost[first]}"
    return Failure(kind="infrastructure", message=message)
