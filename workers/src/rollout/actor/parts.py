"""What playing needs, and what comes of a task that was played."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rollout.actor.episodes import Episode
from rollout.actor.sandboxes import EpisodeRoom
from rollout.ledger.records import MemoryRow
from rollout.protocol.messages import Failure, Task, TaskResult
from rollout.seams import Engine, EnvBuilder, Renderer
from rollout.seeds import derive_seed
from rollout.turns import Budgets
from rollout.types import ExpertRoutes, Prefix, WeightVersion

RETURNED = Failure(kind="returned", message="another actor is to go on with it")
Builders = Callable[[Task], EnvBuilder]


class MemorySource(Protocol):
    """What environments keep between episodes."""

    async def entries_of(self, version: WeightVersion) -> Mapping[str, MemoryRow]:
        """The entries as of a version, by key. Raises InfrastructureError."""
        ...


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
    training prompt. None: no bound. ``keeps_prefixes`` False (Exact): a sample that is given up starts over, and
    the samples of a group wait for each other every turn. ``continuous``: the engine takes samples one by one as
    they come, and batches them itself. ``room`` bounds the episodes in play; None: nothing does.
    ``routes``: what training samples have of their experts before any is known; None: the model has none.
    ``single_row``: the algorithm that learns from one row of an episode, by its name; empty: it learns from all.
    ``memory``: what environments keep; None: nobody keeps anything, and theirs is empty at each start.
    """

    engine: Engine
    renderer: Renderer
    builders: Builders
    seed: int
    context_max: int | None = None
    prompt_tokens_max: int | None = None
    keeps_prefixes: bool = False
    continuous: bool = False
    budgets: Budgets = field(default_factory=Budgets)
    room: EpisodeRoom | None = None
    routes: ExpertRoutes | None = None
    single_row: str = ""
    memory: MemorySource | None = None

    def has_room(self, tokens: int, task: Task) -> bool:
        """Whether a completion still fits behind so many tokens."""
        return self.context_max is None or tokens + task.sampling.max_new_tokens <= self.context_max

    def noise(self, episode: Episode, task: Task) -> int:
        """The noise of an episode's present turn and segment."""
        return self.noise_of(task, episode.sample, episode.turn, episode.segment)

    def noise_of(self, task: Task, sample: int, turn: int = 0, segment: int = 0) -> int:
        """As ``noise``, of an episode that is not there yet."""
        return derive_seed(
            self.seed,
            task.noise_domain,
            task.ordinal if task.noise_ordinal is None else task.noise_ordinal,
            sample,
            turn,
            segment,
        )


class Plugins(Protocol):
    """Plugins whose files may change: looked at beside the work, taken between two claims."""

    note: str

    @property
    def digests(self) -> Mapping[str, str]:
        """Of the files that episodes are played with now."""
        ...

    async def watch(self) -> None:
        """Look for ever."""
        ...

    def take(self) -> None:
        """Play what is begun from now on with what has come up, or is taken back; nothing is in play."""
        ...

    def judge(self, results: Sequence[TaskResult]) -> list[TaskResult]:
        """The results, but that those which what is to be taken back has failed at are to be played again."""
        ...
