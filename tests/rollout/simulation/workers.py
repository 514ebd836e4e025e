"""Simulated actors: the real loop over an engine of hashes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from blake3 import blake3
from virtual_time import Process
from world import Broken, Client, World

from rollout.actor.continuation import build_prefix
from rollout.actor.episodes import Episode, Score, TurnGroup
from rollout.actor.held_tasks import HeldTasks
from rollout.actor.loop import ActorParts
from rollout.actor.runner import RETURNED, PlayedTask
from rollout.actor.turns.memory import RunMemory
from rollout.entrypoints.actor import _live
from rollout.errors import EngineError, InfrastructureError
from rollout.memory import NOTHING, MemoryWrite, encode_value
from rollout.protocol import messages as m
from rollout.seams import SampleProgress
from rollout.types import GenerateRequest, Message, SamplingParams, VersionSpan, WeightVersion

TROUBLES_MAX = 2
"""Most attempts at one task that this world spoils: below the tries that a task has."""


LAST_SHARE = 0.999
NO_REQUEST = GenerateRequest(prompt_ids=(), seeds=(), sampling=SamplingParams(max_new_tokens=1))


def draw_of(*parts: Any) -> int:
    return int.from_bytes(blake3(repr(parts).encode()).digest()[:4], "big")


class HashEngine:
    """Loads what the store has; some actors' memory flips bits. Drawing takes time, and can be interrupted."""

    def __init__(self, world: World, process: Process, index: int) -> None:
        self._world, self._process, self._index = world, process, index
        self.version: WeightVersion | None = None
        self._asked = asyncio.Event()
        self._began, self._seconds = 0.0, 0.0
        self._lengths: list[list[int]] = []

    async def start(self) -> None:
        await asyncio.sleep(self._world.draw.uniform(0.1, 2.0))

    async def stop(self) -> None:
        pass

    async def load(
        self, version: WeightVersion, weights: Path, changed: frozenset[str] | None = None
    ) -> str:
        await asyncio.sleep(self._world.draw.uniform(0.01, 0.3))
        digest = f"blake3:{blake3(self._world.store.read(str(weights))).hexdigest()}"
        self.version = version
        if self._world.wrong_weights.get(self._index, 0) > 0:
            self._world.wrong_weights[self._index] -= 1
            self._world.count("wrong weights")
            return "blake3:" + "f" * 64
        return digest

    def interrupt(self) -> None:
        self._asked.set()

    def progress(self) -> list[list[SampleProgress]]:
        shares = share_out(self._share(), len(self._lengths))
        return [
            [show_progress(share, length) for length in row]
            for share, row in zip(shares, self._lengths, strict=True)
        ]

    async def draw_for(self, seconds: float, lengths: list[list[int]]) -> float:
        """Which share of the tokens was drawn: 1, or less after an interruption."""
        self._asked.clear()
        self._began, self._seconds, self._lengths = self._world.now, seconds, lengths
        try:
            await asyncio.wait_for(self._asked.wait(), seconds)
            return min(self._share(), LAST_SHARE)
        except TimeoutError:
            return 1.0
        finally:
            self._lengths = []

    def _share(self) -> float:
        return min(1.0, (self._world.now - self._began) / max(self._seconds, 1e-9))


def share_out(share: float, count: int) -> list[float]:
    """Of several groups, drawn one after the other: how much of each is there."""
    return [min(1.0, max(0.0, share * count - place)) for place in range(count)]


def show_progress(share: float, length: int) -> SampleProgress:
    if not length or share >= 1.0:
        return SampleProgress(state="ended", num_tokens=length)
    if share <= 0.0:
        return SampleProgress(state="queued")
    return SampleProgress(state="running", num_tokens=int(share * length))


async def play_each(
    tasks: Sequence[m.Task],
    stage: Any,
    ended: Any,
    hand: HeldTasks,
    hand_back: Any,
    more: None,  # a run that trains feeds nobody
) -> None:
    """In the place of the runner's own: tokens are hashes of noise, segment and weights.

    Some groups end before the others, which may be killed before they do.
    """
    world: World = stage.world
    await stage.process.gate()
    if stage.engine.version != tasks[0].version:
        raise Broken(f"{tasks[0].task_id} would be sampled from {stage.engine.version}")
    drawn = await draw_all(tasks, stage, hand, hand_back)
    if world.scenario.remembers:
        await remember(drawn, tasks[0].version, stage)
    await stage.process.gate()
    tasks = [task for task in tasks if task.task_id in drawn]
    spoiled = [task for task in tasks if spoil(world, task)]
    if tasks and len(spoiled) == len(tasks) and world.draw.random() < 0.5:
        raise EngineError("the engine crashed")
    played = [
        play_one(world, task, tuple(drawn[task.task_id]), spoiled=task in spoiled) for task in tasks
    ]
    first = world.draw.randint(0, len(played))
    for some in filter(None, (played[:first], played[first:])):
        ended(some)
        await asyncio.sleep(world.draw.uniform(0.0, 0.2))
        await stage.process.gate()


async def draw_all(
    tasks: Sequence[m.Task], stage: Any, hand: HeldTasks, hand_back: Any
) -> dict[str, list[Episode]]:
    """Every sample to its end, but for the tasks that are let go on the way."""
    world: World = stage.world
    going = {
        task.task_id: [begin_episode(world, task, n) for n in range(task.num_samples)]
        for task in tasks
    }
    by_id = {task.task_id: task for task in tasks}
    seconds = world.draw.uniform(0.2, 3.0) * stage.slow * world.scenario.slowness
    share = 0.0
    while going and share < 1.0:
        hand.drawing = tuple(
            TurnGroup(episodes=tuple(some), request=NO_REQUEST) for some in going.values()
        )
        lengths = [[length_of(one) - len(one.token_ids) for one in some] for some in going.values()]
        share = await stage.engine.draw_for(seconds, lengths)
        hand.drawing = ()
        await stage.process.gate()
        seconds *= 1.0 - share
        shares = share_out(share, len(going))
        going = {
            name: [draw_more(one, by_id[name], part) for one in some]
            for part, (name, some) in zip(shares, going.items(), strict=True)
        }
        if share < 1.0:
            world.count("interruptions")
            await let_go(going, by_id, stage, hand, hand_back)
    return going


async def remember(drawn: dict[str, list[Episode]], version: WeightVersion, stage: Any) -> None:
    """Have each training sample write what it read as of its version, folded into a number."""
    try:
        entries = await stage.memory.entries_of(version)
    except InfrastructureError as error:  # costs samples, as an engine's end does
        raise EngineError(str(error)) from error
    read = {key: one.value for key, one in entries.items()}
    for some in drawn.values():
        if some[0].task_id.startswith("t/"):
            some[:] = [replace(one, writes=writes_of(one, version, read)) for one in some]


def writes_of(
    episode: Any, version: WeightVersion, read: Mapping[str, str]
) -> tuple[MemoryWrite, ...]:
    """What a sample writes that has read this: a key that others write, too, and now and then nothing in one's place."""
    place = 10 * episode.ordinal + episode.sample
    told = [version.lineage, version.step, fold_read(episode, read)]
    written = {f"k{place % 5}": encode_value(told)}
    if place % 7 == 0:
        written[f"k{place // 7 % 5}"] = NOTHING
    return tuple(MemoryWrite(key=key, value=written[key]) for key in sorted(written))


def fold_read(episode: Any, read: Mapping[str, str]) -> int:
    """A number of all entries in their order."""
    return draw_of("memory", episode.ordinal, episode.sample, list(read.items()))


async def let_go(
    going: dict[str, list[Episode]], by_id: Any, stage: Any, hand: HeldTasks, hand_back: Any
) -> None:
    """As the product's own."""
    returned = []
    for name in list(going):
        if all(one.ending for one in going[name]):
            continue
        if hand.is_dropped(name):
            del going[name]
        elif hand.is_returned(name):
            some = going.pop(name) if stage.keeps_prefixes else going.pop(name) and []
            prefixes = tuple(p for p in map(build_prefix, some) if p is not None)
            returned.append(PlayedTask(task=by_id[name], failure=RETURNED, prefixes=prefixes))
            stage.world.count("beginnings" if prefixes else "handed back without beginnings")
    if returned:
        await hand_back(returned)


def spoil(world: World, task: m.Task) -> bool:
    """Whether this attempt fails; a task is spared after a few."""
    tried = world.failures.get(task.task_id, 0)
    if tried >= TROUBLES_MAX or world.draw.random() >= world.scenario.trouble:
        return False
    world.failures[task.task_id] = tried + 1
    return True


def play_one(
    world: World, task: m.Task, episodes: tuple[Episode, ...], *, spoiled: bool
) -> PlayedTask:
    training = task.kind == "train"
    if training and task.ordinal == world.scenario.broken_task:
        return PlayedTask(
            task=task, failure=m.Failure(kind="data", message=f"{task.task_id}: KeyError")
        )
    if spoiled:
        return spoil_one(world, task, episodes)
    lost = world.scenario.lost.get(task.ordinal, ()) if training else ()
    if not lost:
        return PlayedTask(task=task, episodes=episodes)
    world.count("parts lost")
    kept = tuple(one for one in episodes if one.sample not in lost)
    failure = m.Failure(kind="infrastructure", message="a node went away")
    return PlayedTask(task=task, episodes=kept, failure=failure)


def spoil_one(world: World, task: m.Task, episodes: tuple[Episode, ...]) -> PlayedTask:
    """One of the kinds in which an attempt fails."""
    kinds = ["infrastructure", "part", "returned", "malformed"]
    if task.task_id not in world.failed_once:
        kinds.append("data")
    kind = world.draw.choice(kinds)
    world.count(f"attempts spoiled: {kind}")
    if kind == "malformed":
        return PlayedTask(task=task, episodes=(replace(episodes[0], ordinal=-1), *episodes[1:]))
    if kind == "part":
        failure = m.Failure(kind="infrastructure", message="a node went away")
        return PlayedTask(task=task, episodes=episodes[1:], failure=failure)
    if kind == "data":
        world.failed_once.add(task.task_id)
    return PlayedTask(task=task, failure=m.Failure(kind=kind, message=f"{kind} trouble"))


def begin_episode(world: World, task: m.Task, sample: int) -> Episode:
    """An episode at its start, or behind the beginning that another actor left."""
    episode = Episode(
        task_id=task.task_id,
        ordinal=task.ordinal,
        sample=sample,
        seed=draw_of(task.noise_domain, task.ordinal, sample),
        messages=(Message(role="user", content=str(task.row["prompt"])),),
        prompt_ids=(1, 2, 3),
    )
    for prefix in task.prefixes:
        if prefix.sample == sample:
            world.count("gone on with")
            return replace(
                episode,
                token_ids=prefix.token_ids,
                logprobs=prefix.logprobs,
                loss_mask=prefix.loss_mask,
                spans=prefix.spans,
                segment=prefix.segment,
                ending=prefix.ending,
            )
    return episode


def length_of(episode: Episode) -> int:
    """Tokens of the whole sample: its own, whoever draws them and however often it is interrupted."""
    return 2 + draw_of("length", episode.ordinal, episode.sample) % 3


def draw_more(episode: Episode, task: m.Task, share: float) -> Episode:
    """The episode after so much of what is left; at its end with a share of 1."""
    have, whole = len(episode.token_ids), length_of(episode)
    count = whole - have if share >= 1.0 else int((whole - have) * share)
    if episode.ending is not None:
        return episode
    noise = (task.noise_domain, task.ordinal, episode.sample)
    tokens = draw_tokens(noise, episode.segment, task.version.digest, count)
    span = VersionSpan(
        start=have, end=have + count, lineage=task.version.lineage, step=task.version.step
    )
    return replace(
        episode,
        token_ids=episode.token_ids + tokens,
        logprobs=episode.logprobs + (-0.1,) * count,
        loss_mask=episode.loss_mask + (1,) * count,
        spans=(*episode.spans, span) if count else episode.spans,
        segment=episode.segment + (have + count < whole and count > 0),
        ending="stop" if have + count == whole else None,
    )


def draw_tokens(noise: Any, segment: int, digest: str, count: int) -> tuple[int, ...]:
    """What the noise of one segment of a sample gives under some weights."""
    return tuple(draw_of(noise, segment, digest, place) % 1000 for place in range(count))


class Scorer:
    """Rewards that depend on the sample alone; those of every ``flat``-th group are all equal."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def score(self, played: Sequence[PlayedTask]) -> list[tuple[Score, ...] | m.Failure]:
        await asyncio.sleep(self._world.draw.uniform(0.0, 0.2))
        return [self._score(one) for one in played]

    def _score(self, one: PlayedTask) -> tuple[Score, ...] | m.Failure:
        if one.failure is not None and not one.episodes:
            return one.failure
        dull = one.task.kind == "train" and one.task.ordinal % self._world.scenario.flat != 0
        rewards = [0.5 if dull else float(episode.sample % 2) for episode in one.episodes]
        return tuple(Score(rewards={"match": reward}, reward=reward) for reward in rewards)


async def act(world: World, process: Process, index: int) -> None:
    """The actor's program from its entry point on; only engine, episodes and rewards are ours."""
    client: Any = Client(world, process)
    slow = world.scenario.drift.get(process.name, 1.0)
    stage: Any = SimpleNamespace(
        engine=HashEngine(world, process, index),
        world=world,
        process=process,
        slow=slow,
        keeps_prefixes=not world.scenario.plan.numerics.exact,
        memory=RunMemory(client.as_worker(process.name)),
    )
    parts = ActorParts(
        worker=process.name,
        client=client,
        weights=world.store,
        stage=stage,
        scorer=Scorer(world),
        tasks_max=world.scenario.tasks_max,
    )
    await _live(parts)
