"""Simulated actors (the real loop over an engine of hashes) and a learner whose weights are hashes, too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from blake3 import blake3
from virtual_time import Process
from world import Broken, Client, World

from rollout.actor.episodes import Episode, Score
from rollout.actor.loop import ActorParts
from rollout.actor.play import Played
from rollout.coordinator import messages as m
from rollout.entrypoints.actor import _live
from rollout.errors import EngineError, RolloutError, RunFailed
from rollout.types import Message, VersionSpan, WeightVersion

TROUBLES_MAX = 2
"""Most attempts at one task that this world spoils: below the tries that a task has."""


def draw_of(*parts: Any) -> int:
    return int.from_bytes(blake3(repr(parts).encode()).digest()[:4], "big")


class HashEngine:
    """Loads what the store has; some actors' memory flips bits."""

    def __init__(self, world: World, process: Process, index: int) -> None:
        self._world, self._process, self._index = world, process, index
        self.version: WeightVersion | None = None

    async def start(self) -> None:
        await asyncio.sleep(self._world.draw.uniform(0.1, 2.0))

    async def stop(self) -> None:
        pass

    async def load(self, version: WeightVersion, weights: Path, changed=None) -> str:
        await asyncio.sleep(self._world.draw.uniform(0.01, 0.3))
        digest = f"blake3:{blake3(self._world.store.read(str(weights))).hexdigest()}"
        self.version = version
        if self._world.wrong_weights.get(self._index, 0) > 0:
            self._world.wrong_weights[self._index] -= 1
            self._world.count("wrong weights")
            return "blake3:" + "f" * 64
        return digest


async def play(tasks: Sequence[m.Task], stage: Any) -> tuple[Played, ...]:
    """In the place of ``rollout.actor.play.play``: tokens are hashes of noise and weights."""
    world: World = stage.world
    await stage.process.gate()
    await asyncio.sleep(world.draw.uniform(0.2, 3.0) * stage.slow)
    await stage.process.gate()
    if stage.engine.version != tasks[0].version:
        raise Broken(f"{tasks[0].task_id} would be sampled from {stage.engine.version}")
    spoiled = [task for task in tasks if spoil(world, task)]
    if len(spoiled) == len(tasks) and world.draw.random() < 0.5:
        raise EngineError("the engine crashed")
    return tuple(play_one(world, task, spoiled=task in spoiled) for task in tasks)


def spoil(world: World, task: m.Task) -> bool:
    """Whether this attempt fails; a task is spared after a few."""
    tried = world.failures.get(task.task_id, 0)
    if tried >= TROUBLES_MAX or world.draw.random() >= world.scenario.trouble:
        return False
    world.failures[task.task_id] = tried + 1
    return True


def play_one(world: World, task: m.Task, *, spoiled: bool) -> Played:
    episodes = tuple(make_episode(task, sample) for sample in range(task.num_samples))
    training = task.kind == "train"
    if training and task.ordinal == world.scenario.broken_task:
        return Played(
            task=task, failure=m.Failure(kind="data", message=f"{task.task_id}: KeyError")
        )
    if spoiled:
        return spoil_one(world, task, episodes)
    lost = world.scenario.lost.get(task.ordinal, ()) if training else ()
    if not lost:
        return Played(task=task, episodes=episodes)
    world.count("parts lost")
    kept = tuple(one for one in episodes if one.sample not in lost)
    failure = m.Failure(kind="infrastructure", message="a node went away")
    return Played(task=task, episodes=kept, failure=failure)


def spoil_one(world: World, task: m.Task, episodes: tuple[Episode, ...]) -> Played:
    """One of the kinds in which an attempt fails."""
    kinds = ["infrastructure", "part", "returned", "malformed"]
    if task.task_id not in world.failed_once:
        kinds.append("data")
    kind = world.draw.choice(kinds)
    world.count(f"attempts spoiled: {kind}")
    if kind == "malformed":
        return Played(task=task, episodes=(replace(episodes[0], ordinal=-1), *episodes[1:]))
    if kind == "part":
        failure = m.Failure(kind="infrastructure", message="a node went away")
        return Played(task=task, episodes=episodes[1:], failure=failure)
    if kind == "data":
        world.failed_once.add(task.task_id)
    return Played(task=task, failure=m.Failure(kind=kind, message=f"{kind} trouble"))


def make_episode(task: m.Task, sample: int) -> Episode:
    version = task.version
    noise = (task.noise_domain, task.ordinal, sample)
    tokens = tuple(draw_of(noise, version.digest, place) % 1000 for place in range(2))
    span = VersionSpan(start=0, end=2, lineage=version.lineage, step=version.step)
    return Episode(
        task_id=task.task_id,
        ordinal=task.ordinal,
        sample=sample,
        seed=draw_of(noise),
        messages=(Message(role="user", content=str(task.row["prompt"])),),
        prompt_ids=(1, 2, 3),
        token_ids=tokens,
        logprobs=(-0.1, -0.2),
        loss_mask=(1, 1),
        spans=(span,),
        ending="stop",
    )


class Scorer:
    """Rewards that depend on the sample alone; those of every ``flat``-th group are all equal."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def score(self, played: Sequence[Played]) -> list[tuple[Score, ...] | m.Failure]:
        await asyncio.sleep(self._world.draw.uniform(0.0, 0.2))
        return [self._score(one) for one in played]

    def _score(self, one: Played) -> tuple[Score, ...] | m.Failure:
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
        engine=HashEngine(world, process, index), world=world, process=process, slow=slow
    )
    parts = ActorParts(
        worker=process.name,
        index=index,
        client=client,
        weights=world.store,
        stage=stage,
        scorer=Scorer(world),  # type: ignore[arg-type]
        tasks_max=world.scenario.tasks_max,
    )
    await _live(parts)


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What an anchor keeps."""

    step: int
    chain: str
    weights: str
    cursor: m.Cursor


class Learner:
    """One incarnation. ``salt``: what this machine computes otherwise than another."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process
        self._client = Client(world, process)
        self._salt = world.salt
        self._started: m.LearnerStarted
        self._lineage = 0
        self._anchored = -1

    @property
    def _me(self) -> dict[str, Any]:
        return {"worker": "learner", "incarnation": self._started.incarnation}

    async def run(self) -> None:
        self._started = await self._client.start_learner(worker="learner")
        self._lineage = self._started.lineage
        beating = asyncio.ensure_future(self._beat())
        try:
            state = await self._resume()
            await self._learn(state)
        except RunFailed as error:
            self._world.break_promise(f"the learner cannot go on: {error}")
            raise
        finally:
            beating.cancel()
        await self._client.outcome(**self._me, role="learner", ok=True)

    async def _beat(self) -> None:
        drift = self._world.scenario.drift.get("learner", 1.0)
        while True:
            await asyncio.sleep(self._started.heartbeat_seconds * drift)
            try:
                await self._client.heartbeat(
                    m.Heartbeat(**self._me, state="training"), role="learner"
                )
            except RolloutError:
                continue

    async def _learn(self, state: State) -> None:
        while True:
            batch = await self._next_batch(state.step + 1)
            if batch.stop is not None:
                if state.step != self._anchored:
                    await self._anchor(state)
                return
            await asyncio.sleep(self._world.draw.uniform(0.2, 2.0))
            await self._process.gate()
            state = await self._commit(state, batch)
            if state.step % self._world.scenario.anchor_every == 0:
                await self._anchor(state)

    async def _next_batch(self, step: int) -> m.Batch:
        while True:
            batch = await self._client.batch(
                m.BatchRequest(**self._me, step=step, wait_seconds=2.0)
            )
            if batch.waiting is None:
                return batch
            if not batch.waiting:
                self._world.break_promise("a wait without a culprit")

    def _take(self, state: State, batch: m.Batch) -> State:
        return take_step(state, batch.ids, batch.cursor, self._salt, self._world.store.put)

    async def _commit(self, state: State, batch: m.Batch) -> State:
        reached = self._take(state, batch)
        done = await self._client.commit(
            m.Commit(
                **self._me,
                step=batch.step,
                lineage=self._lineage,
                consumed=tuple(name for group in batch.ids for name in group),
                plan={"salt": self._salt},
                version=self._version(reached),
                chain=reached.chain,
                cursor=reached.cursor,
                metrics={"reward": 0.5},
            )
        )
        if not done.accepted:
            raise RunFailed(f"step {batch.step} was not accepted")
        return reached

    def _version(self, state: State) -> WeightVersion:
        return WeightVersion(
            lineage=self._lineage, step=state.step, digest=state.weights, object=state.weights
        )

    async def _anchor(self, state: State) -> None:
        kept = self._world.store.put(msgspec.msgpack.encode(state))
        if not self._world.store.has(state.weights):
            raise RunFailed(f"the weights of step {state.step} are gone")
        manifest = m.AnchorManifest(
            name=f"step-{self._lineage}-{state.step:06d}",
            lineage=self._lineage,
            step=state.step,
            chain=state.chain,
            version=self._version(state),
            objects={"weights": state.weights, "state": kept},
        )
        await self._client.anchor(**self._me, manifest=manifest)
        self._anchored = state.step

    async def _resume(self) -> State:
        """As ``rollout.learner.resume``."""
        await asyncio.sleep(self._world.draw.uniform(0.1, 2.0))
        state = await self._begin()
        for record in self._started.replay:
            batch = await self._client.replay(**self._me, step=record.step)
            await asyncio.sleep(self._world.draw.uniform(0.1, 1.0))
            if tuple(sorted(n for group in batch.ids for n in group)) != tuple(
                sorted(record.consumed)
            ):
                raise RunFailed(f"the replayed batch of step {record.step} is another one")
            state = self._take(state, batch)
            if (state.weights, state.chain) != (record.version.digest, record.chain):
                if not self._world.scenario.salted:
                    raise RunFailed(f"replay of step {record.step} met another digest")
                await self._fork(state)
                return state
        if state.step != self._started.committed_step:
            raise RunFailed(f"replay ended at {state.step} of {self._started.committed_step}")
        return state

    async def _begin(self) -> State:
        anchor = self._started.anchor
        if anchor is not None:
            self._anchored = anchor.step
            kept = self._world.store.read(anchor.objects["state"])
            return msgspec.msgpack.decode(kept, type=State)
        state = begin(self._world.store.put)
        if self._started.initial is None:
            await self._client.publish_initial(
                **self._me, version=self._version(state), chain=state.chain
            )
        return state

    async def _fork(self, state: State) -> None:
        self._world.count("forks")
        forked = await self._client.fork(
            m.Fork(
                **self._me,
                step=state.step,
                version=self._version(state),
                chain=state.chain,
                reason=f"replay of step {state.step} met another digest",
            )
        )
        self._lineage = forked.lineage
        await self._anchor(state)


def begin(put: Any) -> State:
    """Where every run begins."""
    weights = put(b"initial weights")
    return State(step=0, chain="c0", weights=weights, cursor=m.Cursor(next_ordinal=0))


def take_step(state: State, ids: Any, cursor: m.Cursor | None, salt: str, put: Any) -> State:
    """One step: the next weights depend on the last ones and on all that was consumed, in order."""
    assert cursor is not None
    weights = put(repr((state.weights, ids, salt)).encode())
    link = repr((state.chain, weights, ids, cursor.next_ordinal, cursor.exhausted))
    return State(
        step=state.step + 1,
        chain=blake3(link.encode()).hexdigest(),
        weights=weights,
        cursor=cursor,
    )


async def learn(world: World, process: Process) -> None:
    """One process of the learner."""
    await Learner(world, process).run()
