"""Plays the episodes of claimed tasks turn by turn, all of them in one engine call a turn.

Environments are users' code: they run in a thread under a deadline, and what they raise is the
task's failure (kind ``data``), never ours. An InfrastructureError of theirs, and a reply that the engine
gave up, cost one sample; the others are played to their end. What the engine raises is the caller's to handle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rollout.actor.continuation import build_prefix, continue_episode
from rollout.actor.episodes import Episode, plan_turn, take_answer, take_completion, take_part
from rollout.actor.held_tasks import HeldTasks
from rollout.errors import DataError, EngineError, InfrastructureError
from rollout.protocol.messages import Failure, Task
from rollout.seams import Engine, Env, EnvBuilder, Renderer
from rollout.seeds import derive_seed
from rollout.types import Completion, Message, Prefix

log = logging.getLogger(__name__)

ENVIRONMENT_SECONDS_MAX = 300.0
"""How long all environments of one claim may take for one turn, in sum."""

RETURNED = Failure(kind="returned", message="another actor is to go on with it")
Builders = Callable[[Task], EnvBuilder]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTask:
    """One task after its episodes: every sample's ended episode, or why some or all are missing.

    ``episodes`` beside a ``failure`` are the samples that infrastructure trouble did not reach,
    ``prefixes`` what there is of samples that somebody else is to go on with.
    """

    task: Task
    episodes: tuple[Episode, ...] = ()
    failure: Failure | None = None
    prefixes: tuple[Prefix, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerParts:
    """What playing needs. ``seed`` is ``spec.seed``.

    ``context_max``: tokens that prompt and completion may have together; ``prompt_tokens_max``: those of a
    training prompt. None: no bound. ``keeps_prefixes`` False (Exact): a sample that is given up starts over.
    """

    engine: Engine
    renderer: Renderer
    builders: Builders
    seed: int
    context_max: int | None = None
    prompt_tokens_max: int | None = None
    keeps_prefixes: bool = False

    def has_room(self, tokens: int, task: Task) -> bool:
        """Whether a completion still fits behind so many tokens."""
        return self.context_max is None or tokens + task.sampling.max_new_tokens <= self.context_max


HandBack = Callable[[Sequence[PlayedTask]], Awaitable[None]]
"""Told at once of tasks that are let go, while the others go on."""
Ended = Callable[[Sequence[PlayedTask]], None]
"""Told at once of tasks whose episodes have all ended, while the others go on."""


class _Table:
    """The episodes of one claim in play, by task, with their environments and failures."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = {task.task_id: task for task in tasks}
        self.episodes: dict[str, list[Episode]] = {}
        self.environments: dict[tuple[str, int], Env] = {}
        self.failures: dict[str, Failure] = {}
        self.lost: dict[str, dict[int, str]] = {}

    def fail(self, task: Task, message: str) -> None:
        self.failures[task.task_id] = Failure(kind="data", message=message)

    def lose(self, task: Task, sample: int, message: str) -> None:
        """Give up one sample for what happened outside the policy; its siblings go on."""
        self.lost.setdefault(task.task_id, {})[sample] = message

    def going(self) -> list[Episode]:
        return [
            episode
            for task_id, episodes in self.episodes.items()
            if task_id not in self.failures
            for episode in episodes
            if episode.ending is None and episode.sample not in self.lost.get(task_id, ())
        ]

    def put(self, episode: Episode) -> None:
        self.episodes[episode.task_id][episode.sample] = episode

    def unfinished(self) -> list[Task]:
        return [self.tasks[task_id] for task_id in {one.task_id: 0 for one in self.going()}]

    def let_go(self, task: Task, *, keeps_prefixes: bool) -> PlayedTask:
        """Take a task out of play. What infrastructure took of it is tried again with the rest."""
        del self.tasks[task.task_id]
        episodes, lost = self.episodes.pop(task.task_id), self.lost.get(task.task_id, {})
        kept = [one for one in episodes if keeps_prefixes and one.sample not in lost]
        prefixes = tuple(prefix for one in kept if (prefix := build_prefix(one)) is not None)
        return PlayedTask(task=task, failure=RETURNED, prefixes=prefixes)

    def take_ended(self) -> tuple[PlayedTask, ...]:
        """Take the tasks out of play of which nothing goes on."""
        going = {one.task_id for one in self.going()}
        ended = [task for task_id, task in self.tasks.items() if task_id not in going]
        played = tuple(map(self._played, ended))
        for task in ended:
            del self.tasks[task.task_id]
            self.episodes.pop(task.task_id, None)
        return played

    def _played(self, task: Task) -> PlayedTask:
        if task.task_id in self.failures:
            return PlayedTask(task=task, failure=self.failures[task.task_id])
        lost = self.lost.get(task.task_id, {})
        kept = (one for one in self.episodes[task.task_id] if one.sample not in lost)
        return PlayedTask(task=task, episodes=tuple(kept), failure=_describe_lost(lost))


def _describe_lost(lost: Mapping[int, str]) -> Failure | None:
    if not lost:
        return None
    first = min(lost)
    message = f"{len(lost)} samples lost, first sample {first}: {lost[first]}"
    return Failure(kind="infrastructure", message=message)


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
    table, hand = _Table(tasks), hand or HeldTasks(stage.engine.interrupt)
    await _in_environments(table, lambda: _begin_all(table, stage))
    while True:
        await _let_go(table, stage, hand, hand_back)
        if played := table.take_ended():
            ended(played)
        if not (going := table.going()):
            return
        await _policy_turn(table, going, stage, hand)
        await _in_environments(table, partial(_environment_turn, table, going, stage))


async def _let_go(
    table: _Table, stage: RunnerParts, hand: HeldTasks, hand_back: HandBack | None
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


async def _in_environments(table: _Table, work: Callable[[], None]) -> None:
    """Run users' environment code in a thread, bounded; past the bound every open task fails."""
    try:
        await asyncio.wait_for(asyncio.to_thread(work), ENVIRONMENT_SECONDS_MAX)
    except TimeoutError:
        for task in table.tasks.values():
            if task.task_id not in table.failures:
                table.fail(
                    task, f"the environment did not answer in {ENVIRONMENT_SECONDS_MAX:.0f} s"
                )


def _begin_all(table: _Table, stage: RunnerParts) -> None:
    for task in table.tasks.values():
        try:
            table.episodes[task.task_id] = _begin(table, task, stage)
        except InfrastructureError as error:
            table.failures[task.task_id] = Failure(kind="infrastructure", message=str(error))
        except Exception as error:  # noqa: BLE001 - the user's code: its failure is the task's
            table.fail(task, f"environment, at the start of an episode: {_said(error, task)}")


def _begin(table: _Table, task: Task, stage: RunnerParts) -> list[Episode]:
    builder = stage.builders(task)
    prefixes = {one.sample: one for one in task.prefixes}
    prompts: dict[tuple[object, ...], tuple[int, ...]] = {}

    def start(sample: int) -> Episode:
        environment = builder.build(task.row)
        messages = tuple(environment.start())
        if messages not in prompts:
            prompts[messages] = _render_first(task, messages, stage)
        table.environments[task.task_id, sample] = environment
        return Episode(
            task_id=task.task_id,
            ordinal=task.ordinal,
            sample=sample,
            seed=derive_seed(stage.seed, task.noise_domain, task.ordinal, sample),
            messages=messages,
            prompt_ids=prompts[messages],
        )

    return [
        _go_on(start, prefixes[sample], table, task, stage) if sample in prefixes else start(sample)
        for sample in range(task.num_samples)
    ]


def _go_on(
    start: Callable[[int], Episode], prefix: Prefix, table: _Table, task: Task, stage: RunnerParts
) -> Episode:
    """The episode behind its prefix; from its first token where the environment answers otherwise."""
    fresh = start(prefix.sample)
    environment = table.environments[task.task_id, prefix.sample]
    episode = continue_episode(fresh, prefix, environment, stage.renderer, task)
    if episode is None:
        log.info("sample starts over task=%s sample=%d", task.task_id, prefix.sample)
        return start(prefix.sample)
    return replace(episode, seed=_seed(episode, task, stage))


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


async def _policy_turn(
    table: _Table, going: Sequence[Episode], stage: RunnerParts, hand: HeldTasks
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
    table: _Table, episode: Episode, completion: Completion, stage: RunnerParts
) -> None:
    task = table.tasks[episode.task_id]
    if completion.finish == "aborted":
        table.lose(task, episode.sample, "the engine gave up on it")
        return
    if completion.finish == "interrupted":
        part = take_part(episode, completion, task.version)
        table.put(replace(part, seed=_seed(part, task, stage)))
        return
    said = episode.token_ids[len(episode.token_ids) - episode.begun :] + completion.token_ids
    table.put(take_completion(episode, completion, said, stage.renderer, task))


def _seed(episode: Episode, task: Task, stage: RunnerParts) -> int:
    """The noise of an episode's present turn and segment."""
    return derive_seed(
        stage.seed,
        task.noise_domain,
        task.ordinal,
        episode.sample,
        episode.turn,
        episode.segment,
    )


def _environment_turn(table: _Table, going: Sequence[Episode], stage: RunnerParts) -> None:
    for before in going:
        task = table.tasks[before.task_id]
        episode = table.episodes[task.task_id][before.sample]
        gone = episode.begun or before.sample in table.lost.get(task.task_id, ())
        if episode.ending is not None or task.task_id in table.failures or gone:
            continue
        try:
            table.put(_answered(table, task, episode, stage))
        except InfrastructureError as error:
            table.lose(task, episode.sample, str(error))
        except Exception as error:  # noqa: BLE001 - the user's code: its failure is the task's
            table.fail(task, f"environment, after a reply: {_said(error, task)}")


def _answered(table: _Table, task: Task, episode: Episode, stage: RunnerParts) -> Episode:
    environment = table.environments[task.task_id, episode.sample]
    added, done = environment.step(episode.reply)
    if done:
        return replace(episode, ending="stop")
    seed = _seed(episode, task, stage)
    goes_on = take_answer(episode, added, seed, stage.renderer)
    if not stage.has_room(len(goes_on.context_ids), task):
        return replace(episode, ending="length")
    return goes_on


def _said(error: Exception, task: Task) -> str:
    row = ", ".join(f"{key}={value!r:.40}" for key, value in list(task.row.items())[:4])
    return f"{type(error).__name__}: {error} (ordinal {task.ordinal}, row {{{row}}})"
