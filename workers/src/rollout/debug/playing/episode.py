"""The walk of one episode: the actor's own loop, watched. What ends an episode, and whose doing that is, is the loop's.

Nothing is scored and nothing is kept. What the environment raises is told with the user's own line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rollout.actor.episodes import Episode
from rollout.actor.parts import PlayedTask, RunnerParts
from rollout.actor.runner import play as play_tasks
from rollout.errors import EngineError, InfrastructureError, RolloutError, SpecError
from rollout.plugins.user_code import describe_failure, refusing_failures
from rollout.protocol.messages import Task
from rollout.seams import DataSource, Engine, Env, EnvBuilder, Renderer
from rollout.turns import Action, Ending, State
from rollout.types import Row, SamplingParams, ToolCall, WeightVersion

LEASE_SECONDS = 3600.0
"""Of a task that nobody leases: what the loop is given has the form of an actor's."""


class LeftTheEpisode(EngineError):  # noqa: N818 - what the player did
    """Whoever plays answers no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """Who answers. ``seed`` is as ``spec.seed``, ``context_max`` tokens of prompt and reply together (None: no bound)."""

    engine: Engine
    renderer: Renderer
    version: WeightVersion
    sampling: SamplingParams
    seed: int = 0
    context_max: int | None = None
    continuous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """One answer of the environment. ``reply`` and its ``calls`` are what it answers; ``turn`` 0 is the beginning.

    ``trouble``: why a fresh environment was made, which hears the same replies from turn 0 on; empty: it was not.
    """

    turn: int
    said: State | Ending
    reply: str = ""
    calls: tuple[ToolCall, ...] = ()
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisode:
    """What became of it. ``ending`` is None where it was left; ``total`` the sum of its turns' rewards.

    ``replies`` are those of all turns, ``unheard`` what the environment was not asked of them: one that a limit cut
    off; ``close_failure`` is what ``close`` raised.
    """

    ending: Ending | None
    replies: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()
    total: float = 0.0
    close_failure: str = ""


Told = Callable[[PlayedStep], None]


def play_episode(builder: EnvBuilder, row: Row, player: Player, told: Told) -> PlayedEpisode:
    """The episode of one row to its end, or until it is left; ``told`` hears each step as it is made.

    The environment is closed whatever happens. Raises SpecError naming the turn and the user's line for what it
    raised, InfrastructureError where two environments in a row could not answer, and what the engine raises.
    """
    watched = _WatchedBuilder(builder, told)
    try:
        (played,) = asyncio.run(_play(watched, row, player))
    except LeftTheEpisode:
        return PlayedEpisode(ending=None, close_failure=watched.close_failure)
    if not played.episodes:
        return PlayedEpisode(
            ending=_not_the_policys(played, watched), close_failure=watched.close_failure
        )
    (episode,) = played.episodes
    return PlayedEpisode(
        ending=_ending(episode, watched.said),
        replies=episode.replies,
        unheard=episode.replies[watched.num_heard :],
        total=sum(one or 0.0 for one in episode.turn_rewards),
        close_failure=watched.close_failure,
    )


async def _play(builder: EnvBuilder, row: Row, player: Player) -> tuple[PlayedTask, ...]:
    stage = RunnerParts(
        engine=player.engine,
        renderer=player.renderer,
        builders=lambda _: builder,
        seed=player.seed,
        context_max=player.context_max,
        keeps_prefixes=True,
        continuous=player.continuous,
    )
    task = Task(
        task_id="played",
        kind="eval",
        ordinal=0,
        row=row,
        num_samples=1,
        attempt=1,
        epoch=0,
        lease_seconds=LEASE_SECONDS,
        version=player.version,
        sampling=player.sampling,
    )
    try:
        return await play_tasks([task], stage)
    finally:
        await player.engine.stop()


def _ending(episode: Episode, said: State | Ending | None) -> Ending:
    """The environment's own, with what it says to people, or the loop's."""
    assert episode.ending is not None
    if isinstance(said, Ending) and said.kind == episode.ending:
        return said
    return Ending(kind=episode.ending)


def _not_the_policys(played: PlayedTask, watched: _WatchedBuilder) -> Ending:
    """The ending that the environment calls another's. Raises what was raised where it called none so."""
    if watched.failure is not None:
        raise watched.failure
    if isinstance(watched.said, Ending) and watched.said.owner != "policy":
        return watched.said
    assert played.failure is not None
    kind = SpecError if played.failure.kind == "data" else InfrastructureError
    raise kind(played.failure.message)


class _WatchedBuilder:
    """Builds the episodes of another builder, and hears what they say."""

    def __init__(self, inner: EnvBuilder, told: Told) -> None:
        self._inner, self._told = inner, told
        self._num_built = 0
        self._trouble = ""
        self.num_heard = 0
        self.said: State | Ending | None = None
        self.failure: RolloutError | None = None
        self.close_failure = ""

    def source(self, split: str, seed: int) -> DataSource | None:
        """The inner builder's rows."""
        return self._inner.source(split, seed)

    def build(self, row: Row) -> _WatchedEnv:
        """One more episode of the row, the first or a fresh one."""
        self._num_built += 1
        with self.attributing(0):
            return _WatchedEnv(self._inner.build(row), self)

    def tell(self, step: PlayedStep) -> None:
        """Hear one step."""
        self.said, self.num_heard, self._trouble = step.said, step.turn, ""
        self._told(step)

    @property
    def trouble(self) -> str:
        """Why the present environment is a fresh one; empty for the first."""
        return "" if self._num_built == 1 else self._trouble or "no answer in time"

    @contextmanager
    def attributing(self, turn: int) -> Iterator[None]:
        """What is raised inside is remembered, and raised with the user's line."""
        try:
            with _with_line(f"the environment failed in turn {turn}"):
                yield
        except InfrastructureError as error:
            self._trouble = str(error)
            raise
        except RolloutError as error:
            self.failure = error
            raise


@contextmanager
def _with_line(what: str) -> Iterator[None]:
    try:
        yield
    except RolloutError:
        raise
    except Exception:
        with refusing_failures(what):
            raise


class _WatchedEnv:
    """One episode of another builder's."""

    def __init__(self, inner: Env, watched: _WatchedBuilder) -> None:
        self._inner, self._watched = inner, watched

    async def start(self) -> State:
        """The inner environment's beginning, told."""
        with self._watched.attributing(0):
            said = await self._inner.start()
        self._watched.tell(PlayedStep(turn=0, said=said, trouble=self._watched.trouble))
        return said

    async def step(self, action: Action) -> State | Ending:
        """The inner environment's answer, told."""
        turn = action.turn + 1
        with self._watched.attributing(turn):
            said = await self._inner.step(action)
        step = PlayedStep(turn=turn, said=said, reply=action.text, calls=action.calls)
        self._watched.tell(step)
        return said

    async def close(self) -> None:
        """Close the inner one; what it raises costs nobody anything, and is told at the end."""
        try:
            await self._inner.close()
        except Exception as error:  # noqa: BLE001 - as in a run, where it is logged
            self._watched.close_failure = describe_failure(error)
