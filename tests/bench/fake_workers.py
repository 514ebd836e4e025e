"""``fake_workers.py actor|learner URL FOLDER``: a worker of a run whose tokens and weights nobody computes.

The actor is the product's loop, player and client over an engine of letters; the learner stores a version of a few
kilobytes each step, commits it and saves an anchor every ``ANCHOR_EVERY`` steps. Each ends when it is told to stop.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "rollout" / "actor"))

from actor_fakes import CountingBuilder, LetterRenderer, SayingEngine
from fake_run import SECRET

from rollout.actor.episodes import Score
from rollout.actor.loop import Actor, ActorParts
from rollout.actor.runner import RunnerParts
from rollout.objects.filesystem import FilesystemStore
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.auth import token_for
from rollout.protocol.client import CoordinatorClient
from rollout.types import WeightVersion

ANCHOR_EVERY = 20
VERSION_BYTES = 16 << 10
TASKS_MAX = 8


class StoredWeights:
    """Versions as files of the store."""

    num_rebuilt = 0

    def __init__(self, store: FilesystemStore) -> None:
        self._store = store

    def path(self, name: str) -> Path:
        """Where an object lies. Raises StoreError."""
        return self._store.path(name)

    def changes(self, before: str, after: str) -> None:
        """Anything may have changed."""
        del before, after

    def forget(self) -> None:
        """Nothing is kept."""


class EvenScorer:
    """Rewards by sample index."""

    async def score(self, played):
        """One score a sample."""
        return [
            tuple(
                Score(rewards={"even": float(e.sample % 2)}, reward=float(e.sample % 2))
                for e in one.episodes
            )
            for one in played
        ]


class ForgetfulEngine(SayingEngine):
    """As the tests', but what it was asked for is not kept: it lives for weeks."""

    async def generate(self, requests):
        """Letters."""
        done = await super().generate(requests)
        self.calls.clear()
        self.loads.clear()
        return done


def act(client: CoordinatorClient, store: FilesystemStore) -> None:
    """The product's actor until it is told to stop."""
    stage = RunnerParts(
        engine=ForgetfulEngine(lambda prompt, seed: str(seed % 100)),
        renderer=LetterRenderer(),
        builders=lambda _task: CountingBuilder(),
        seed=7,
    )
    parts = ActorParts(
        worker="actor-0",
        client=client,
        weights=StoredWeights(store),
        stage=stage,
        scorer=EvenScorer(),
        tasks_max=TASKS_MAX,
    )
    asyncio.run(Actor(parts).run())


def learn(client: CoordinatorClient, store: FilesystemStore) -> None:
    """Versions, commits and anchors until it is told to stop."""
    started = client.as_worker("learner").call(routes.START, m.LearnerStart())
    learner = client.as_worker("learner", started.incarnation)
    learner.call(routes.PUBLISH_INITIAL, m.PublishInitial(version=_store(store, 0)))
    step = 0
    while True:
        ask = m.BatchRequest(step=step + 1, wait_seconds=5.0)
        batch = learner.call(routes.BATCH, ask)
        if batch.stop is not None:
            return
        if batch.waiting is None:
            step += 1
            _take(learner, store, batch)


def _store(store: FilesystemStore, step: int) -> WeightVersion:
    name = store.put(os.urandom(VERSION_BYTES))
    return WeightVersion(lineage=0, step=step, digest=name, object=name)


def _take(learner: CoordinatorClient, store: FilesystemStore, batch: m.Batch) -> None:
    assert batch.cursor is not None
    version, chain = _store(store, batch.step), f"blake3:{batch.step:064x}"
    commit = m.Commit(
        step=batch.step,
        lineage=0,
        consumed=tuple(name for group in batch.ids for name in group),
        plan={},
        version=version,
        chain=chain,
        cursor=batch.cursor,
        metrics={"reward": 0.5, "loss": 0.1},
    )
    learner.call(routes.COMMIT, commit)
    if batch.step % ANCHOR_EVERY:
        return
    manifest = m.AnchorManifest(
        name=f"step-{batch.step:06d}",
        lineage=0,
        step=batch.step,
        chain=chain,
        version=version,
        objects={"weights": version.object, "optimizer": store.put(os.urandom(VERSION_BYTES))},
    )
    learner.call(routes.ANCHOR, m.AnchorSaved(manifest=manifest))


WORKERS = {"actor": act, "learner": learn}

if __name__ == "__main__":
    role, url, folder = sys.argv[1:]
    WORKERS[role](
        CoordinatorClient.connect(url, token_for(SECRET, role)),
        FilesystemStore(Path(folder) / "objects"),
    )
