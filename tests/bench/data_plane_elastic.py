"""What asynchrony gains and what a lost actor costs: real actors, coordinator and ledger, simulated compute.

Engine and learner sleep instead of computing, so that shared cores hide nothing: the engine a fixed time
for a group, the learner a fixed time for a step. Everything between them is the product's own. *Preempted* is a
run of twenty minutes in which a second stands for a minute: one of four actors is gone without a word, and
another is there a minute later; what the product itself costs is not made shorter, and so counts sixty times.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from figures import Figure, level, ratio

TESTS = Path(__file__).parents[1] / "rollout"
sys.path[:0] = [str(TESTS / "actor"), str(TESTS / "coordinator")]

from actor_fakes import CountingBuilder, LetterRenderer, SayingEngine
from coordinator_kit import Bench, FakeLearner
from plans import run_plan

from rollout.actor.episodes import Score
from rollout.actor.loop import Actor, ActorParts
from rollout.actor.runner import PlayedTask, RunnerParts
from rollout.errors import Fenced
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout.types import SamplingParams

REPEATS = 3
LEASE_SECONDS = 2.0
RESTART_SECONDS = 1.0
"""How long a replacement takes to be there."""
SCALE_LEASE_SECONDS = 0.5
"""The usual 30 s, where a second stands for a minute."""
LOOK_SECONDS = 0.1
"""What a scheduler of shared cores may add to a wait."""
STALENESS = (1, 2, 4)
WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A run: ``group_seconds`` of an actor for each group, ``step_seconds`` of the learner for each step."""

    num_actors: int
    groups: int
    steps: int
    group_seconds: float
    step_seconds: float
    staleness: int = 0


EVEN = Shape(num_actors=2, groups=8, steps=12, group_seconds=0.1, step_seconds=0.4)
"""Actors and learner need equally long for a step: the ideal gain of asynchrony is 2."""
FOUR = Shape(num_actors=4, groups=24, steps=40, group_seconds=0.05, step_seconds=0.01)
"""Nearly all is the actors' work, so that a lost one is felt."""


TWENTY = replace(FOUR, steps=64)
"""Twenty minutes, a minute a second."""


class Weights:
    """The store itself: nobody looks into these weights."""

    num_rebuilt = 0

    def __init__(self, bench: Bench) -> None:
        self._store = bench.store

    def path(self, name: str) -> Path:
        """The object's file."""
        return self._store.path(name)

    def changes(self, since: str, name: str) -> None:
        """Nothing is known."""

    def forget(self) -> None:
        """Nothing is kept."""


class PacedEngine(SayingEngine):
    """Takes its time for each group, one after the other."""

    def __init__(self, seconds: float) -> None:
        super().__init__(lambda prompt, seed: "x")
        self._seconds = seconds

    async def generate(self, requests: Any) -> Any:
        """As the base class, later."""
        await asyncio.sleep(self._seconds * len(requests))
        return await super().generate(requests)


class EvenScorer:
    """Rewards that differ within a group."""

    async def score(self, played: Sequence[PlayedTask]) -> list[tuple[Score, ...]]:
        """0 and 1 in turn."""
        return [
            tuple(Score(rewards={"even": i % 2}, reward=i % 2) for i, _ in enumerate(one.episodes))
            for one in played
        ]


class Line:
    """One actor's connection; once it is cut, nothing reaches the coordinator."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._client = client
        self.cut = False

    def as_worker(self, worker: str, incarnation: int = 0) -> Seat:
        """As a client does it."""
        return Seat(self, self._client.as_worker(worker, incarnation))


@dataclass(frozen=True)
class Seat:
    """A worker's calls over a line."""

    line: Line
    client: CoordinatorClient

    def as_worker(self, worker: str, incarnation: int = 0) -> Seat:
        """As a client does it."""
        return self.line.as_worker(worker, incarnation)

    def call(self, route: Any, request: Any) -> Any:
        """Nothing gets through once the line is cut."""
        if self.line.cut and route is routes.ACTIVATION:
            return None  # told in the background: nobody would take the error
        if self.line.cut:
            raise Fenced("cut")
        return self.client.call(route, request)


@dataclass
class Crew:
    """Actors, each with a thread and an event loop of its own, as each has a process in a real run."""

    client: CoordinatorClient
    bench: Bench
    shape: Shape
    lines: dict[int, Line] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)

    def join(self, index: int) -> None:
        """One more actor."""
        self.lines[index] = Line(self.client)
        actor = Actor(self._parts(index))
        thread = threading.Thread(target=_live, args=(actor,), daemon=True)
        thread.start()
        self.threads.append(thread)

    def kill(self, index: int) -> None:
        """Nothing of an actor is heard any more, in the middle of what it does."""
        self.lines[index].cut = True

    def _parts(self, index: int) -> ActorParts:
        stage = RunnerParts(
            engine=PacedEngine(self.shape.group_seconds),
            renderer=LetterRenderer(),
            builders=lambda _: CountingBuilder(),
            seed=0,
        )
        return ActorParts(
            worker=f"actor-{index}",
            client=self.lines[index],  # pyrefly: ignore - hands every call on
            weights=Weights(self.bench),
            stage=stage,
            scorer=EvenScorer(),
            tasks_max=1,
        )


def _live(actor: Actor) -> None:
    with suppress(Fenced):
        asyncio.run(actor.run())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Seconds from the first step's start to the last commit, and when leases of whom ran out."""

    seconds: float
    expired: tuple[tuple[str, float], ...]


def run(
    shape: Shape,
    disturb: Callable[[Crew, int], None] | None = None,
    lease_seconds: float = LEASE_SECONDS,
) -> Ran:
    """One run; ``disturb`` is told of every step."""
    plan = run_plan(
        name="elastic",
        uid="uid-1",
        tasks_per_step=shape.groups,
        num_samples=2,
        sampling=SamplingParams(max_new_tokens=4),
        staleness_max=shape.staleness,
        steps_max=shape.steps,
        lease_seconds=lease_seconds,
        heartbeat_seconds=lease_seconds / 3,
        exact=shape.staleness == 0,
    )
    with tempfile.TemporaryDirectory(prefix="rollout-bench-elastic-") as folder:
        bench = Bench(Path(folder))
        client = bench.start(plan)
        learner, crew = FakeLearner(client, bench.store), Crew(client, bench, shape)
        for index in range(shape.num_actors):
            crew.join(index)
        started = time.monotonic()
        for step in range(1, shape.steps + 1):
            if disturb is not None:
                disturb(crew, step)
            batch = learner.ask(wait=WAIT_SECONDS)
            time.sleep(shape.step_seconds)
            learner.commit(batch)
        seconds = time.monotonic() - started
        learner.finish()
        for thread in crew.threads:
            thread.join(LEASE_SECONDS)
        bench.close()
        return Ran(seconds=seconds, expired=_expired(bench))


def _expired(bench: Bench) -> tuple[tuple[str, float], ...]:
    with bench.reader() as ledger:
        wanted = "SELECT worker, ended_at FROM attempts WHERE ending = 'expired' ORDER BY ended_at"
        return tuple((row[0], row[1]) for row in ledger._file.tx.execute(wanted))


def measure() -> Iterator[Figure]:
    """Asynchrony, then losses."""
    yield from _asynchrony()
    yield from _losses()
    yield from _preemption()


def _asynchrony() -> Iterator[Figure]:
    synchronous: list[float] = []
    others: dict[int, list[float]] = {staleness: [] for staleness in STALENESS}
    for _ in range(REPEATS):
        synchronous.append(run(EVEN).seconds)
        for staleness, seconds in others.items():
            seconds.append(run(replace(EVEN, staleness=staleness)).seconds)
    for staleness, seconds in others.items():
        yield ratio(f"staleness {staleness} against synchronous", seconds, synchronous, ">= 1.6")


def _losses() -> Iterator[Figure]:
    middle = FOUR.steps // 2

    def lose(crew: Crew, step: int) -> None:
        if step == middle:
            crew.kill(0)

    def replace_it(crew: Crew, step: int) -> None:
        lose(crew, step)
        if step == middle:
            threading.Timer(RESTART_SECONDS, crew.join, (0,)).start()

    whole: list[float] = []
    lost: list[float] = []
    replaced: list[float] = []
    for _ in range(REPEATS):
        whole.append(run(FOUR).seconds)
        lost.append(run(FOUR, lose).seconds)
        replaced.append(run(FOUR, replace_it).seconds)
    left = (FOUR.steps - middle + 1) / FOUR.steps
    allowed = [w * (1 - left) + w * left * 4 / 3 + LEASE_SECONDS for w in whole]
    yield level(
        "1 of 4 actors lost, against what survives",
        [a / b for a, b in zip(lost, allowed, strict=True)],
        "x",
        "<= 1.05",
    )
    yield level(
        "1 of 4 actors replaced, against undisturbed",
        [a / b for a, b in zip(replaced, whole, strict=True)],
        "x",
        "<= 1.1",
    )


def _preemption() -> Iterator[Figure]:
    """One of four actors is gone in the middle, and another in its place a minute later."""
    middle, killed_at = TWENTY.steps // 2, [0.0]

    def preempt(crew: Crew, step: int) -> None:
        if step == middle:
            crew.kill(0)
            killed_at[0] = time.time()
            threading.Timer(RESTART_SECONDS, crew.join, (0,)).start()

    def lose(crew: Crew, step: int) -> None:
        if step == FOUR.steps // 2:
            crew.kill(0)
            killed_at[0] = time.time()

    costs: list[float] = []
    seen: list[float] = []
    for _ in range(REPEATS):
        calm = run(TWENTY, lease_seconds=SCALE_LEASE_SECONDS)
        costs.append(run(TWENTY, preempt, SCALE_LEASE_SECONDS).seconds / calm.seconds - 1)
        ran = run(FOUR, lose)
        found = [at - killed_at[0] for who, at in ran.expired if who == "actor-0"]
        seen += [at for at in found if at > 0][:1]
    yield level("a preemption, of a run of 20 minutes", costs, "share", "<= 0.05")
    terms = [(seconds - LOOK_SECONDS) / LEASE_SECONDS for seconds in seen]
    yield level("a dead actor is noticed, in lease terms", terms, "x", "<= 1")
