"""One sample's environment: asked and waited for by itself, made afresh where it fails, closed whatever happens.

Environments are users' code. What one raises is its task's failure; so is an ending that it calls the task's. What it
calls infrastructure's (an ending, an InfrastructureError) and an answer that takes too long are tried once more: a
fresh environment hears the same replies. Where that takes too long as well, it is what the policy's reply led to: the
episode ends as OUT_OF_TIME, and earns nothing. A start that takes too long, infrastructure that fails twice, and
a fresh environment that answers otherwise cost that sample.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from rollout.actor.continuation import EnvAnswers, continue_episode
from rollout.actor.episodes import (
    OUT_OF_TIME,
    Episode,
    action_of,
    end_episode,
    over_budget,
    take_answer,
    too_many_calls,
)
from rollout.actor.parts import RunnerParts
from rollout.actor.turns.rows import NOTHING, Rows
from rollout.environments.memory import EpisodeMemory, build_episode, wants_memory
from rollout.environments.threads import Overdue, within
from rollout.errors import DataError, InfrastructureError
from rollout.protocol.messages import Task
from rollout.rendering.choices import choice_text, render_before, render_choices
from rollout.seams import Env, EnvBuilder
from rollout.turns import Action, Ending, State
from rollout.types import Message, Prefix

log = logging.getLogger(__name__)

ENVIRONMENT_SECONDS_MAX = 300.0
"""How long one environment may take to start, or to answer one reply."""
CLOSE_SECONDS_MAX = 10.0
"""How long one may take to close."""

Prompts = dict[tuple[tuple[Message, ...], tuple[str, ...]], tuple[int, ...]]
"""Prompts of one task that have been rendered, by messages and tools."""


class Closing:
    """Environments that are closed while others are played: a slow one holds nobody up."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, environment: Env) -> None:
        """Close one that nothing is asked of any more."""
        task = asyncio.create_task(_close(environment))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait until all are closed; bounded, as each of them is."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))


async def _close(environment: Env) -> None:
    try:
        await within(CLOSE_SECONDS_MAX, environment.close())
    except Exception as error:  # noqa: BLE001 - told, and costs nobody anything
        log.warning("environment, at its close: %s: %s", type(error).__name__, error)


class SampleEnvironment:
    """The environment of one sample, and how the sample's episode goes on with it. ``close`` when done."""

    def __init__(
        self, task: Task, sample: int, stage: RunnerParts, prompts: Prompts, closing: Closing
    ) -> None:
        self._task, self._sample, self._stage = task, sample, stage
        self._prompts, self._closing = prompts, closing
        self._environment: Env | None = None
        self._memory: EpisodeMemory | None = None
        self._rows = Rows()
        self._began = asyncio.get_running_loop().time()

    def close(self) -> None:
        """Have it closed, in its own time; idempotent."""
        if self._environment is not None:
            self._closing.begin(self._environment)
            self._environment = None

    async def begin(self) -> Episode:
        """The episode at its start, or behind what another actor left of it. Raises Overdue as ``_open``."""
        prefix = next((one for one in self._task.prefixes if one.sample == self._sample), None)
        try:
            return await (self._start() if prefix is None else self._go_on(prefix))
        except InfrastructureError as error:
            log.info("sample starts afresh task=%s: %s", self._task.task_id, error)
            return await self._start()

    def finished(self, episode: Episode) -> Episode:
        """An episode that has ended, with its rows where there are several, and what it wrote where that is kept."""
        ended = self._rows.finish(episode)
        writes = () if self._memory is None else self._memory.finish()
        return replace(ended, writes=writes) if writes and self._task.kind == "train" else ended

    async def answer(self, episode: Episode) -> Episode:
        """The episode after the environment's turn. Raises InfrastructureError, DataError, what it raised."""
        self._rows.keep(episode)
        if too_many_calls(episode, self._stage.budgets):
            return replace(episode, ending="tool-call-limit")
        try:
            said = await self._ask(action_of(episode))
        except (Overdue, InfrastructureError) as error:
            said = await self._ask_afresh(episode, error)
        if isinstance(said, Ending):
            return end_episode(episode, said)
        return await self._take(episode, said)

    async def _start(self) -> Episode:
        self._rows = Rows()
        state = await self._open()
        return Episode(
            task_id=self._task.task_id,
            ordinal=self._task.ordinal,
            sample=self._sample,
            seed=self._stage.noise_of(self._task, self._sample),
            messages=state.messages,
            tools=state.tools or (),
            prompt_ids=self._render_first(state),
            choices=self._render_choices(state),
            routes=self._stage.routes if self._task.kind == "train" else None,
        )

    async def _open(self) -> State:
        """A fresh environment, started; the one before is closed."""
        self.close()
        builder = self._stage.builders(self._task)
        self._memory = await self._remember(builder)
        environment = build_episode(builder, self._task.row, self._memory)
        self._environment = environment
        said = await within(ENVIRONMENT_SECONDS_MAX, environment.start())
        if isinstance(said, Ending):
            raise TypeError(f"start() must return a State, got an Ending ({said.kind})")
        return said

    async def _remember(self, builder: EnvBuilder) -> EpisodeMemory | None:
        """What is kept, for a fresh environment that wants it. Raises InfrastructureError."""
        if self._stage.memory is None:
            return None
        if not await within(ENVIRONMENT_SECONDS_MAX, wants_memory(builder)):
            return None
        return EpisodeMemory(await self._stage.memory.entries_of(self._task.version))

    async def _ask(self, action: Action) -> State | Ending:
        assert self._environment is not None
        return _owned(await within(ENVIRONMENT_SECONDS_MAX, self._environment.step(action)))

    async def _ask_afresh(
        self, episode: Episode, first: Overdue | InfrastructureError
    ) -> State | Ending:
        log.info("asking a fresh environment task=%s: %s", self._task.task_id, first)
        seconds = ENVIRONMENT_SECONDS_MAX * (1 + episode.turn)
        try:
            return await within(seconds, self._hear_again(episode))
        except Overdue as error:
            if not isinstance(first, Overdue):
                raise InfrastructureError(f"{first}; and a fresh environment: {error}") from error
            log.warning("episode out of time task=%s sample=%d", episode.task_id, episode.sample)
            return Ending(kind=OUT_OF_TIME)

    async def _hear_again(self, episode: Episode) -> State | Ending:
        """What a fresh environment says to the last reply, after hearing all those before it."""
        if episode.forks:
            raise InfrastructureError(
                "an episode of several rows is not begun afresh in its middle"
            )
        said, place = episode.messages, 0
        state: State | Ending = await self._open()
        for turn in range(episode.turn):
            if (
                isinstance(state, Ending)
                or said[place : place + len(state.messages)] != state.messages
            ):
                break
            place += len(state.messages) + 1
            state = await self._ask(action_of(episode, turn))
        else:
            return state
        raise InfrastructureError(
            "the environment did not answer, and a fresh one did not answer as it had before"
        )

    async def _take(self, episode: Episode, said: State) -> Episode:
        seconds = asyncio.get_running_loop().time() - self._began
        if said.choices or episode.choices:
            raise DataError(
                "choices are said at the start of an episode, which is over after its reply"
            )
        if ending := over_budget(episode, self._stage.budgets, seconds):
            return end_episode(episode, replace_ending(said, ending))
        begins = said.after is not None and self._rows.begins(said)
        if begins and self._rows.num_rows >= self._stage.budgets.rows:
            return end_episode(episode, replace_ending(said, "row-limit"))
        seed = self._stage.noise(episode, self._task)
        if said.after is None:
            goes_on = take_answer(episode, said, seed, self._stage.renderer)
        else:
            goes_on = self._fork(episode, said, seed)
        if not self._stage.has_room(len(goes_on.context_ids), self._task):
            return end_episode(episode, replace_ending(said, "length"))
        return goes_on

    def _fork(self, episode: Episode, said: State, seed: int) -> Episode:
        """The episode on another row. Raises as ``take_answer``, and DataError where only one is learned from."""
        assert said.after is not None
        if self._stage.single_row and self._task.kind == "train":
            raise DataError(
                f"the environment begins another row of its episode, and {self._stage.single_row} learns from one: take"
                " grpo or distill, or an environment whose conversation only grows"
            )
        if said.after != NOTHING:
            row = self._rows.behind(episode, said.after)
            return take_answer(row, replace(said, tools=None), seed, self._stage.renderer)
        return self._rows.begin(episode, said, self._render(said), seed)

    async def _go_on(self, prefix: Prefix) -> Episode:
        """The episode behind its prefix; from its first token where the environment answers otherwise."""
        fresh = await self._start()
        answers = EnvAnswers(ask=self._ask, renderer=self._stage.renderer, heard=self._rows.keep)
        episode = await continue_episode(fresh, prefix, answers, self._task)
        if episode is None:
            log.info("sample starts over task=%s sample=%d", self._task.task_id, prefix.sample)
            return await self._start()
        return replace(episode, seed=self._stage.noise(episode, self._task))

    def _render_first(self, state: State) -> tuple[int, ...]:
        """The prompt that an episode begins with. Raises DataError for one that is too long."""
        key = (state.messages, tuple(tool.digest for tool in state.tools or ()))
        try:
            if key in self._prompts:
                return self._prompts[key]
        except TypeError:  # a message with a call in it, which has no hash
            return self._fitting(state)
        self._prompts[key] = self._fitting(state)
        return self._prompts[key]

    def _fitting(self, state: State) -> tuple[int, ...]:
        stage, task = self._stage, self._task
        prompt_ids = self._render(state)
        longest = stage.prompt_tokens_max if task.kind == "train" else None
        if longest is not None and len(prompt_ids) > longest:
            raise DataError(
                f"the prompt has {len(prompt_ids)} tokens, this run was planned for {longest} at most; leave"
                " such rows out, or raise train.maxPromptTokens"
            )
        if not stage.has_room(len(prompt_ids), task):
            raise DataError(
                f"the prompt has {len(prompt_ids)} tokens and the completion up to"
                f" {task.sampling.max_new_tokens}, the model's context holds {stage.context_max}; leave such"
                " rows out, or lower sampling.maxNewTokens"
            )
        return prompt_ids

    def _render_choices(self, state: State) -> tuple[tuple[int, ...], ...]:
        """Ids of the replies that there may be. Raises DataError for one that is longer than a reply may be."""
        if not state.choices:
            return ()
        if self._task.kind == "train":
            raise DataError(
                "choices are scored in evaluations only: nothing is sampled that could be trained on"
            )
        text, longest = choice_text(state.messages), self._task.sampling.max_new_tokens
        found = render_choices(self._stage.renderer, text, state.choices)
        for choice, ids in zip(state.choices, found, strict=True):
            if len(ids) > longest:
                raise DataError(
                    f"the choice {choice!r:.60} has {len(ids)} tokens, maxNewTokens is {longest}; raise it to"
                    f" {max(map(len, found))}"
                )
        return found

    def _render(self, state: State) -> tuple[int, ...]:
        renderer = self._stage.renderer
        if state.choices:
            return render_before(renderer, choice_text(state.messages))
        if self._task.shows_answer:
            return renderer.render_training(state.messages)[0]
        if self._task.goes_on:
            return renderer.render_text(state.messages[0].text)
        return renderer.render_prompt(state.messages, state.tools or ())


def replace_ending(said: State, kind: str) -> Ending:
    """What the environment said of the last reply, where the episode does not go on."""
    return Ending(kind=kind, turn_reward=said.turn_reward, signals=said.signals)


def _owned(said: State | Ending) -> State | Ending:
    """What is the policy's to hear. Raises InfrastructureError or DataError for an ending of another owner."""
    if isinstance(said, Ending) and said.owner == "infrastructure":
        raise InfrastructureError(f"{said.kind}: {said.detail}")
    if isinstance(said, Ending) and said.owner == "task":
        raise DataError(
            f"the environment ended the episode as its task's: {said.kind}: {said.detail}"
        )
    return said
