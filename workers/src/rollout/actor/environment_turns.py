"""The environments' side of a claim: each episode's is asked by itself, and waited for by itself.

Environments are users' code. What one raises is its task's failure (kind ``data``); an InfrastructureError of
its own, and a start that takes too long, cost that sample. An answer that takes too long is ambiguous: a
fresh environment hears the same replies, and where that takes too long as well it is what the policy's
reply led to: the episode ends as OUT_OF_TIME, and earns nothing (protocol section 5).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rollout.actor.continuation import continue_episode
from rollout.actor.episodes import OUT_OF_TIME, Episode, take_answer
from rollout.actor.table import EpisodeTable, RunnerParts
from rollout.environments.calls import Overdue, call_each
from rollout.errors import DataError, InfrastructureError
from rollout.protocol.messages import Task
from rollout.seams import TextEnv
from rollout.types import Message, Prefix

log = logging.getLogger(__name__)

ENVIRONMENT_SECONDS_MAX = 300.0
"""How long one environment may take to start, or to answer one reply."""
CLOSE_SECONDS_MAX = 10.0
"""How long one may take to close."""

Prompts = dict[tuple[Message, ...], tuple[int, ...]]


async def begin_all(table: EpisodeTable, stage: RunnerParts) -> None:
    """Start every sample's environment. Raises EngineError when too many have never answered."""
    opened: dict[str, Prompts] = {task_id: {} for task_id in table.tasks}
    wanted = [(task, sample) for task in table.tasks.values() for sample in range(task.num_samples)]
    calls = [
        partial(_begin, table, task, sample, opened[task.task_id], stage) for task, sample in wanted
    ]
    answers = await call_each(calls, ENVIRONMENT_SECONDS_MAX)
    late: dict[str, int] = {}
    for (task, sample), answer in zip(wanted, answers, strict=True):
        if isinstance(answer, Overdue):
            table.lose(task, sample, f"the environment did not start: {answer}")
            late[task.task_id] = late.get(task.task_id, 0) + 1
        else:
            _take(table, task, sample, answer, "at the start of an episode")
    for task_id, number in late.items():
        task = table.tasks[task_id]
        if number == task.num_samples:
            table.fail(task, f"the environment did not answer in {ENVIRONMENT_SECONDS_MAX:g} s")


def _begin(
    table: EpisodeTable, task: Task, sample: int, prompts: Prompts, stage: RunnerParts
) -> Episode:
    prefix = next((one for one in task.prefixes if one.sample == sample), None)
    if prefix is None:
        return _start(table, task, sample, prompts, stage)
    return _go_on(table, task, prefix, prompts, stage)


def _start(
    table: EpisodeTable, task: Task, sample: int, prompts: Prompts, stage: RunnerParts
) -> Episode:
    messages = tuple(_open(table, task, sample, stage).start())
    if messages not in prompts:
        prompts[messages] = _render_first(task, messages, stage)
    episode = Episode(
        task_id=task.task_id,
        ordinal=task.ordinal,
        sample=sample,
        seed=0,
        messages=messages,
        prompt_ids=prompts[messages],
    )
    return replace(episode, seed=stage.noise(episode, task))


def _open(table: EpisodeTable, task: Task, sample: int, stage: RunnerParts) -> TextEnv:
    environment = stage.builders(task).build(task.row)
    table.sit(task, sample, environment)
    if table.is_given_up(task.task_id, sample):
        # It took so long to be made that nobody is left to close it.
        getattr(environment, "close", lambda: None)()
        raise InfrastructureError("nobody waits for this environment any more")
    return environment


def _go_on(
    table: EpisodeTable, task: Task, prefix: Prefix, prompts: Prompts, stage: RunnerParts
) -> Episode:
    """The episode behind its prefix; from its first token where the environment answers otherwise."""
    fresh = _start(table, task, prefix.sample, prompts, stage)
    environment = table.environments[task.task_id, prefix.sample]
    episode = continue_episode(fresh, prefix, environment, stage.renderer, task)
    if episode is None:
        log.info("sample starts over task=%s sample=%d", task.task_id, prefix.sample)
        return _start(table, task, prefix.sample, prompts, stage)
    return replace(episode, seed=stage.noise(episode, task))


def _render_first(task: Task, messages: tuple[Message, ...], stage: RunnerParts) -> tuple[int, ...]:
    """The prompt that an episode begins with. Raises DataError for one that is too long."""
    prompt_ids = stage.renderer.render_prompt(messages)
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


async def answer_all(table: EpisodeTable, replied: Sequence[Episode], stage: RunnerParts) -> None:
    """Have every environment that was replied to answer. Raises EngineError as ``begin_all``."""
    present = [table.episodes[one.task_id].get(one.sample, one) for one in replied]
    heard = [one for one in present if _wants_answer(table, one)]
    calls = [partial(_answer, table, one, stage) for one in heard]
    answers = await call_each(calls, ENVIRONMENT_SECONDS_MAX)
    late = [one for one, said in zip(heard, answers, strict=True) if isinstance(said, Overdue)]
    _take_answers(table, heard, answers)
    await _ask_again(table, late, stage)


def _wants_answer(table: EpisodeTable, episode: Episode) -> bool:
    over = episode.begun or episode.ending is not None
    return not over and not table.is_given_up(episode.task_id, episode.sample)


async def _ask_again(table: EpisodeTable, late: Sequence[Episode], stage: RunnerParts) -> None:
    """Have fresh environments hear what those heard that did not answer."""
    left = [one for one in late if _wants_answer(table, one)]
    turns = max((one.turn for one in left), default=0)
    calls = [partial(_answer_again, table, one, stage) for one in left]
    answers = await call_each(calls, ENVIRONMENT_SECONDS_MAX * (1 + turns))
    for one, answer in zip(left, answers, strict=True):
        if isinstance(answer, Overdue):
            log.warning("episode out of time task=%s sample=%d", one.task_id, one.sample)
            table.put(replace(one, ending=OUT_OF_TIME))
    _take_answers(table, left, answers)


def _take_answers(
    table: EpisodeTable, heard: Sequence[Episode], answers: Sequence[Episode | Exception]
) -> None:
    for episode, answer in zip(heard, answers, strict=True):
        if not isinstance(answer, Overdue):
            task = table.tasks[episode.task_id]
            _take(table, task, episode.sample, answer, "after a reply")


def _answer(table: EpisodeTable, episode: Episode, stage: RunnerParts) -> Episode:
    environment = table.environments[episode.task_id, episode.sample]
    return _take_step(table, episode, environment, stage)


def _take_step(
    table: EpisodeTable, episode: Episode, environment: TextEnv, stage: RunnerParts
) -> Episode:
    task = table.tasks[episode.task_id]
    added, done = environment.step(episode.reply)
    if done:
        return replace(episode, ending="stop")
    seed = stage.noise(episode, task)
    goes_on = take_answer(episode, added, seed, stage.renderer)
    if not stage.has_room(len(goes_on.context_ids), task):
        return replace(episode, ending="length")
    return goes_on


def _answer_again(table: EpisodeTable, episode: Episode, stage: RunnerParts) -> Episode:
    """As ``_answer``, of a fresh environment that has heard the same. Raises InfrastructureError."""
    environment = _open(table, table.tasks[episode.task_id], episode.sample, stage)
    said, place = episode.messages, 0
    added, done = tuple(environment.start()), False
    while place + len(added) + 1 < len(said):
        if done or said[place : place + len(added)] != added:
            break
        place += len(added) + 1
        step = environment.step(said[place - 1].text)
        added, done = tuple(step[0]), step[1]
    if done or (*said[:place], *added) != said[:-1]:
        raise InfrastructureError(
            "the environment did not answer, and a fresh one did not answer as it had before"
        )
    return _take_step(table, episode, environment, stage)


def _take(
    table: EpisodeTable, task: Task, sample: int, answer: Episode | Exception, when: str
) -> None:
    if isinstance(answer, Episode):
        table.put(answer)
    elif isinstance(answer, InfrastructureError):
        table.lose(task, sample, str(answer))
    else:
        table.fail(task, f"environment, {when}: {_said(answer, task)}")


def _said(error: Exception, task: Task) -> str:
    row = ", ".join(f"{key}={value!r:.40}" for key, value in list(task.row.items())[:4])
    return f"{type(error).__name__}: {error} (ordinal {task.ordinal}, row {{{row}}})"


async def close_all(environments: Sequence[TextEnv]) -> None:
    """Close those that have something to close; what they raise is told, and costs nobody anything."""
    closers = [
        one for one in (getattr(environment, "close", None) for environment in environments) if one
    ]
    for answer in await call_each(closers, CLOSE_SECONDS_MAX):
        if isinstance(answer, Exception):
            log.warning("environment, at its close: %s: %s", type(answer).__name__, answer)
