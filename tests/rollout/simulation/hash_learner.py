"""A simulated learner, whose weights are hashes."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import msgspec
from blake3 import blake3
from virtual_time import Process
from world import Client, World

from rollout.errors import CoordinatorError, Fenced, NotStored, RolloutError, RunFailed
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.types import (
    WeightVersion,
)

SALTS = ("", "other")
GRACE_SECONDS, ANCHOR_SECONDS = 5.0, 2.0
OFFERS_MAX = 3


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
        self._client = Client(world, process).as_worker("learner")
        # A machine of its own: what a salted run computes depends on where a learner comes back.
        self._salt = world.draw.choice(SALTS) if world.scenario.salted else ""
        self._started: m.LearnerStarted
        self._lineage = 0
        self._anchored = -1
        self._told_at: float | None = None

    def _tell(self) -> None:
        self._told_at = self._world.now

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._tell)
        self._started = await self._client.call(routes.START, m.LearnerStart())
        self._client = self._client.as_worker("learner", self._started.incarnation)
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
        await self._client.call(routes.LEARNER_OUTCOME, m.Outcome(ok=True))

    async def _beat(self) -> None:
        drift = self._world.scenario.drift.get("learner", 1.0)
        while True:
            await asyncio.sleep(self._started.heartbeat_seconds * drift)
            try:
                await self._client.call(routes.LEARNER_HEARTBEAT, m.Heartbeat(state="training"))
            except RolloutError:
                continue

    async def _learn(self, state: State) -> None:
        while True:
            batch = await self._next_batch(state.step + 1)
            if batch.stop is not None:
                self._world.count(f"stop {batch.stop}")
                left = batch.save_seconds
                if state.step != self._anchored and (left is None or left > ANCHOR_SECONDS):
                    await self._anchor(state)
                    self._world.count("saved on notice" if left else "saved at a stop")
                return
            await asyncio.sleep(self._world.draw.uniform(0.2, 2.0))
            await self._process.gate()
            state = await self._commit(state, batch)
            if state.step % self._world.scenario.anchor_every == 0:
                await self._anchor(state)

    async def _next_batch(self, step: int) -> m.Batch:
        while True:
            batch = await self._client.call(
                routes.BATCH,
                m.BatchRequest(step=step, wait_seconds=2.0, told_seconds=self._told_seconds()),
            )
            if batch.waiting is None:
                return batch
            if not batch.waiting:
                self._world.break_promise("a wait without a culprit")

    def _told_seconds(self) -> float | None:
        if self._told_at is None:
            return None
        return max(0.0, self._told_at + GRACE_SECONDS - self._world.now)

    def _take(self, state: State, batch: m.Batch) -> State:
        return take_step(state, batch.ids, batch.cursor, self._salt, self._world.store.put)

    async def _commit(self, state: State, batch: m.Batch) -> State:
        def store() -> m.Commit:
            reached = self._take(state, batch)
            return m.Commit(
                step=batch.step,
                lineage=self._lineage,
                consumed=tuple(name for group in batch.ids for name in group),
                plan={"salt": self._salt},
                version=self._version(reached),
                chain=reached.chain,
                cursor=reached.cursor,
                metrics={"reward": 0.5},
            )

        reached = self._take(state, batch)
        done = await self._offer(routes.COMMIT, store)
        if not done.accepted:
            raise RunFailed(f"step {batch.step} was not accepted")
        return reached

    def _version(self, state: State) -> WeightVersion:
        return WeightVersion(
            lineage=self._lineage, step=state.step, digest=state.weights, object=state.weights
        )

    async def _offer(self, route: Any, store: Any) -> Any:
        """As ``rollout.learner.session``: what is gone again is stored again."""
        for _ in range(OFFERS_MAX - 1):
            try:
                return await self._client.call(route, store())
            except NotStored:
                self._world.count("stored again")
        return await self._client.call(route, store())

    async def _anchor(self, state: State) -> None:
        are_gone = not self._world.store.has(state.weights)

        def store() -> m.AnchorSaved:
            manifest = m.AnchorManifest(
                name=f"step-{self._lineage}-{state.step:06d}",
                lineage=self._lineage,
                step=state.step,
                chain=state.chain,
                version=self._version(state),
                objects={
                    "weights": state.weights,
                    "state": self._world.store.put(msgspec.msgpack.encode(state)),
                },
            )
            return m.AnchorSaved(manifest=manifest)

        try:
            await self._offer(routes.ANCHOR, store)
        except Fenced:
            raise  # it hears of its commit when it wakes, long after another learner went on: nobody needs its weights
        except CoordinatorError as error:
            raise RunFailed(f"the anchor of step {state.step} is refused: {error}") from error
        if are_gone:
            raise RunFailed(f"the weights of step {state.step} are gone")
        self._anchored = state.step

    async def _resume(self) -> State:
        """As ``rollout.learner.resume``."""
        await asyncio.sleep(self._world.draw.uniform(0.1, 2.0))
        state = await self._begin()
        for record in self._started.replay:
            batch = await self._client.call(routes.REPLAY, m.ReplayRequest(step=record.step))
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
            await self._client.call(
                routes.PUBLISH_INITIAL,
                m.PublishInitial(version=self._version(state), chain=state.chain),
            )
        return state

    async def _fork(self, state: State) -> None:
        self._world.count("forks")
        forked = await self._client.call(
            routes.FORK,
            m.Fork(
                step=state.step,
                version=self._version(state),
                chain=state.chain,
                reason=f"replay of step {state.step} met another digest",
            ),
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
