"""What an actor plays with: its parts, and the episodes of one claim with their environments and failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollout.actor.continuation import build_prefix
from rollout.actor.episodes import Episode
from rollout.protocol.messages import Failure, Task
from rollout.seams import Engine, EnvBuilder, Renderer, TextEnv
from rollout.seeds import derive_seed
from rollout.types import Message, Prefix

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

    def noise(self, episode: Episode, task: Task) -> int:
        """The noise of an episode's present turn and segment."""
        return derive_seed(
            self.seed,
            task.noise_domain,
            task.ordinal,
            episode.sample,
            episode.turn,
            episode.segment,
        )


class OneAtATime:
    """A renderer that several threads may ask: encoding changes a tokenizer's own state."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._lock = threading.Lock()

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """See the seam."""
        return self._renderer.stop_token_ids

    def render_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """See the seam."""
        with self._lock:
            return self._renderer.render_prompt(messages)

    def render_training(
        self, messages: Sequence[Message]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See the seam."""
        with self._lock:
            return self._renderer.render_training(messages)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See the seam."""
        with self._lock:
            return self._renderer.decode(token_ids)

    def survives_text(self, token_ids: Sequence[int]) -> bool:
        """See the seam."""
        with self._lock:
            return self._renderer.survives_text(token_ids)


class EpisodeTable:
    """The episodes of one claim in play, by task and sample."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = {task.task_id: task for task in tasks}
        self.episodes: dict[str, dict[int, Episode]] = {task.task_id: {} for task in tasks}
        self.environments: dict[tuple[str, int], TextEnv] = {}
        self.replaced: list[TextEnv] = []
        self.failures: dict[str, Failure] = {}
        self.lost: dict[str, dict[int, str]] = {}

    def fail(self, task: Task, message: str) -> None:
        """Give up a whole task: its data or the user's code is wrong."""
        self.failures.setdefault(task.task_id, Failure(kind="data", message=message))

    def lose(self, task: Task, sample: int, message: str) -> None:
        """Give up one sample for what happened outside the policy; its siblings go on."""
        self.lost.setdefault(task.task_id, {})[sample] = message

    def is_given_up(self, task_id: str, sample: int) -> bool:
        """Whether nobody waits for this sample any more."""
        known = task_id in self.tasks and task_id not in self.failures
        return not known or sample in self.lost.get(task_id, ())

    def going(self) -> list[Episode]:
        """What the policy is to go on with, in order."""
        return [
            episodes[sample]
            for task_id, episodes in self.episodes.items()
            for sample in sorted(episodes)
            if episodes[sample].ending is None and not self.is_given_up(task_id, sample)
        ]

    def put(self, episode: Episode) -> None:
        """This is how far the sample is now."""
        self.episodes[episode.task_id][episode.sample] = episode

    def sit(self, task: Task, sample: int, environment: TextEnv) -> None:
        """This sample's environment; one that had its place is to be closed."""
        before = self.environments.get((task.task_id, sample))
        if before is not None:
            self.replaced.append(before)
        self.environments[task.task_id, sample] = environment

    def take_idle(self) -> list[TextEnv]:
        """The environments that nothing is asked of any more, each once."""
        going = {(one.task_id, one.sample) for one in self.going()}
        idle = [key for key in list(self.environments) if key not in going]
        replaced, self.replaced = self.replaced, []
        return [*replaced, *(self.environments.pop(key) for key in idle)]

    def take_all(self) -> list[TextEnv]:
        """Every environment that is left."""
        left, self.environments = list(self.environments.values()), {}
        replaced, self.replaced = self.replaced, []
        return [*replaced, *left]

    def unfinished(self) -> list[Task]:
        """Tasks of which something goes on."""
        return [self.tasks[task_id] for task_id in {one.task_id: 0 for one in self.going()}]

    def let_go(self, task: Task, *, keeps_prefixes: bool) -> PlayedTask:
        """Take a task out of play. What infrastructure took of it is tried again with the rest."""
        del self.tasks[task.task_id]
        episodes, lost = self.episodes.pop(task.task_id), self.lost.get(task.task_id, {})
        kept = [one for n, one in sorted(episodes.items()) if keeps_prefixes and n not in lost]
        prefixes = tuple(prefix for one in kept if (prefix := build_prefix(one)) is not None)
        return PlayedTask(task=task, failure=RETURNED, prefixes=prefixes)

    def take_ended(self) -> tuple[PlayedTask, ...]:
        """Take the tasks out of play of which nothing goes on."""
        going = {one.task_id for one in self.going()}
        ended = [task for task_id, task in self.tasks.items() if task_id not in going]
        played = tuple(map(self._played, ended))
        for task in ended:
            del self.tasks[task.task_id], self.episodes[task.task_id]
        return played

    def _played(self, task: Task) -> PlayedTask:
        if task.task_id in self.failures:
            return PlayedTask(task=task, failure=self.failures[task.task_id])
        lost = self.lost.get(task.task_id, {})
        episodes = self.episodes[task.task_id]
        kept = tuple(episodes[sample] for sample in sorted(episodes) if sample not in lost)
        return PlayedTask(task=task, episodes=kept, failure=_describe_lost(lost))


def _describe_lost(lost: Mapping[int, str]) -> Failure | None:
    if not lost:
        return None
    first = min(lost)
    message = f"{len(lost)} samples lost, first sample {first}: {lost[first]}"
    return Failure(kind="infrastructure", message=message)
