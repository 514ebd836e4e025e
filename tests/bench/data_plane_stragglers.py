"""Long-tailed lengths: how long a step's samples take when an idle actor may take over another's groups.

The real coordinator, ledger and actor loop in virtual time; the engine is arithmetic: so many places, each
growing one sample at a fixed pace, a prompt taken in 20 times as fast. Lengths are recorded (reference
answers of GSM8K) or lognormal with the 99 % point at ten times the median, the skew that decoding is
reported with. Compared on the same samples: each actor keeps an equal part of the groups (static), groups
go to actors by a hash of the prompt (sticky), an actor claims as many as it has places (claimed), and an
equal part with stealing.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import math
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from figures import Figure, level

TESTS = Path(__file__).parents[1] / "rollout"
sys.path[:0] = [str(TESTS / "simulation"), str(TESTS / "actor"), str(TESTS / "coordinator")]

from actor_fakes import END, LetterRenderer
from hash_learner import begin, take_step
from plans import run_plan
from scenario import Scenario
from virtual_time import Process, run_virtual
from world import Client, World

from rollout.actor.episodes import Score
from rollout.actor.loop import ActorParts
from rollout.actor.runner import PlayedTask, RunnerParts
from rollout.coordinator.plan import StragglerPlan
from rollout.entrypoints.actor import _live
from rollout.environments.single_turn import SingleTurn
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.seams import SampleProgress
from rollout.seeds import derive_seed
from rollout.types import Completion, GenerateRequest, Message, SamplingParams, WeightVersion

LENGTHS = json.loads((Path(__file__).parent / "gsm8k_lengths.json").read_text())["lengths"]
ACTORS, PLACES, GROUPS, SAMPLES, STEPS = 4, 16, 32, 8, 24
PACE = 4.0
"""Tokens a second of one sample: a tenth of a usual one, as lengths and prompts are."""
PREFILL = 20.0 * PACE
PROMPT = 10
"""Tokens of a prompt."""
TOKENS_MAX = 1024
SEGMENTS = 8
"""Continuations of one sample that the engine recognises."""
TOKEN_BYTES = 4


def draw_lengths(kind: str) -> dict[tuple[int, int], int]:
    """A length for each sample of the run, by ordinal and sample."""
    draw = random.Random(f"stragglers {kind}")

    def one() -> int:
        if kind == "recorded":
            return draw.choice(LENGTHS)
        return min(TOKENS_MAX, max(1, round(60 * math.exp(draw.gauss(0.0, math.log(10) / 2.326)))))

    return {(o, s): one() for o in range(GROUPS * STEPS) for s in range(SAMPLES)}


@dataclass
class Drawn:
    """One sample in the engine: seconds at which it begins, is taken in, and ends."""

    had: int
    length: int
    prefill: float
    begins: float = 0.0

    def tokens(self, now: float, pace: float) -> int:
        grown = int(max(0.0, now - self.begins - self.prefill) * pace)
        return min(self.length - self.had, grown)

    def ends(self, pace: float) -> float:
        return self.begins + self.prefill + (self.length - self.had) / pace


@dataclass
class PacedEngine:
    """``places`` samples at a time, in order, each at ``pace``."""

    lengths: dict[tuple[int, int], int]
    who: dict[int, tuple[int, int]]
    pace: float = PACE
    version: WeightVersion | None = None
    again: int = 0
    _rows: list[list[Drawn]] = field(default_factory=list)
    _asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def load(self, version: WeightVersion, weights: Path, changed: Any = None) -> str:
        self.version = version
        return version.digest

    def interrupt(self) -> None:
        self._asked.set()

    def progress(self) -> list[list[SampleProgress]]:
        now = asyncio.get_running_loop().time()
        return [[self._state(one, now) for one in row] for row in self._rows]

    def _state(self, one: Drawn, now: float) -> SampleProgress:
        if now < one.begins:
            return SampleProgress(state="queued")
        ended = now >= one.ends(self.pace)
        return SampleProgress(
            state="ended" if ended else "running", num_tokens=one.tokens(now, self.pace)
        )

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[list[Completion]]:
        now = asyncio.get_running_loop().time()
        self._rows = [
            [self._enter(request, seed) for seed in request.seeds] for request in requests
        ]
        end = schedule([one for row in self._rows for one in row], now, self.pace)
        self._asked.clear()
        try:
            await asyncio.wait_for(self._asked.wait(), end - now)
            now = asyncio.get_running_loop().time()
        except TimeoutError:
            now = math.inf
        rows, self._rows = self._rows, []
        return [[self._complete(one, now) for one in row] for row in rows]

    def _enter(self, request: GenerateRequest, seed: int) -> Drawn:
        had = len(request.prompt_ids) - PROMPT
        self.again += len(request.prompt_ids) if had else 0
        length = self.lengths[self.who[seed]]
        return Drawn(
            had=had,
            length=length,
            prefill=len(request.prompt_ids) / PREFILL,
        )

    def _complete(self, one: Drawn, now: float) -> Completion:
        ended = now >= one.ends(self.pace)
        number = one.length - one.had if ended else one.tokens(now, self.pace)
        ids = (ord("x"),) * (number - ended) + (END,) * ended
        finish = "stop" if ended else "interrupted"
        return Completion(token_ids=ids, logprobs=(-0.5,) * number, finish=finish)


def schedule(samples: Sequence[Drawn], now: float, pace: float) -> float:
    """Give every sample its place in turn; when the last ends."""
    free = [now] * PLACES
    for one in samples:
        one.begins = heapq.heappop(free)
        heapq.heappush(free, one.ends(pace))
    return max(free)


class Prompts:
    """Prompts of equal length."""

    def source(self, split: str, seed: int) -> None:
        return None

    def build(self, row: Any) -> SingleTurn:
        text = str(row["prompt"]).ljust(PROMPT - 1)[: PROMPT - 1]
        return SingleTurn(messages=(Message(role="user", content=text),))


class EvenScorer:
    """Rewards that differ within a group."""

    async def score(self, played: Sequence[PlayedTask]) -> list[tuple[Score, ...]]:
        return [
            tuple(Score(rewards={}, reward=float(n % 2)) for n in range(len(one.episodes)))
            for one in played
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How groups come to actors."""

    tasks_max: int
    stragglers: StragglerPlan | None = None


STATIC = Way(tasks_max=GROUPS // ACTORS)
CLAIMED = Way(tasks_max=PLACES // SAMPLES)
STEALING = Way(
    tasks_max=GROUPS // ACTORS,
    stragglers=StragglerPlan(steal_margin_seconds=5.0, deadline_factor=1000.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Seconds of each step, tokens taken in again, tokens sampled, groups moved."""

    seconds: list[float]
    again: int
    sampled: int
    moved: int


def run(way: Way, lengths: dict[tuple[int, int], int], paces: Sequence[float]) -> Outcome:
    """One run in virtual time."""
    plan = run_plan(
        name="stragglers",
        uid="uid-1",
        tasks_per_step=GROUPS,
        num_samples=SAMPLES,
        sampling=SamplingParams(max_new_tokens=TOKENS_MAX, stop_token_ids=(END,)),
        steps_max=STEPS,
        exact=False,
        stragglers=way.stragglers,
        sample_wait_seconds=1e6,
        heartbeat_seconds=2.0,
        lease_seconds=30.0,
    )
    scenario = Scenario(seed=0, plan=plan, num_actors=ACTORS, tasks_max=way.tasks_max)
    draw = random.Random(0)
    random.seed(0)
    with tempfile.TemporaryDirectory(prefix="rollout-bench-stragglers-") as folder:
        world = World(scenario, Path(folder), draw)
        found: list[Outcome] = []

        async def live() -> None:
            found.append(await _tell(world, way, lengths, paces))

        run_virtual(live, draw)
    return found[0]


async def _tell(
    world: World, way: Way, lengths: dict[tuple[int, int], int], paces: Sequence[float]
) -> Outcome:
    who = {
        derive_seed(0, "train", o, s, 0, segment): (o, s)
        for o, s in lengths
        for segment in range(SEGMENTS)
    }
    engines = [PacedEngine(lengths=lengths, who=who, pace=pace) for pace in paces]
    keeping = asyncio.ensure_future(world.keep_coordinator())
    learner = Process("learner")
    while world.coordinator is None:
        await asyncio.sleep(0.01)
    actors = []
    for index, engine in enumerate(engines):
        process = Process(f"actor-{index}")
        actors.append(process.spawn(_live(_parts(world, process, index, engine, way))))
    seconds = await learner.spawn(_learn(world, learner))
    moved = sum(world.coordinator.run.recalls.told.values())
    again = world.coordinator.run.recalls.tokens_again
    for task in (*actors, keeping):
        task.cancel()
    await world.close_coordinator()
    assert sum(engine.again for engine in engines) >= again
    return Outcome(
        seconds=seconds,
        again=sum(engine.again for engine in engines),
        sampled=sum(lengths.values()),
        moved=moved,
    )


def _parts(world: World, process: Process, index: int, engine: Any, way: Way) -> ActorParts:
    client: Any = Client(world, process)
    stage = RunnerParts(
        engine=engine,
        renderer=LetterRenderer(),
        builders=lambda _: Prompts(),
        seed=0,
        keeps_prefixes=True,
    )
    return ActorParts(
        worker=process.name,
        client=client,
        weights=world.store,
        stage=stage,
        scorer=EvenScorer(),
        tasks_max=way.tasks_max,
    )


async def _learn(world: World, process: Process) -> list[float]:
    """Takes no time for itself; how long each step's samples took."""
    client = Client(world, process).as_worker("learner")
    started = await client.call(routes.START, m.LearnerStart())
    client = client.as_worker("learner", started.incarnation)
    state = begin(world.store.put)

    def version(step: int, weights: str) -> WeightVersion:
        return WeightVersion(lineage=0, step=step, digest=weights, object=weights)

    await client.call(
        routes.PUBLISH_INITIAL,
        m.PublishInitial(version=version(0, state.weights), chain=state.chain),
    )
    seconds: list[float] = []
    for step in range(1, STEPS + 1):
        began = world.now
        while (
            batch := await client.call(routes.BATCH, m.BatchRequest(step=step, wait_seconds=60.0))
        ).waiting is not None:
            pass
        seconds.append(world.now - began)
        state = take_step(state, batch.ids, batch.cursor, "", world.store.put)
        await client.call(
            routes.COMMIT,
            m.Commit(
                step=step,
                lineage=0,
                consumed=tuple(name for group in batch.ids for name in group),
                plan={},
                version=version(step, state.weights),
                chain=state.chain,
                cursor=state.cursor,
                metrics={},
            ),
        )
    return seconds


def sticky(lengths: dict[tuple[int, int], int], paces: Sequence[float]) -> list[float]:
    """Groups go where the hash of their prompt says; by the engine's own arithmetic, nothing else costs."""
    draw = random.Random("sticky")
    seconds = []
    for step in range(STEPS):
        queues: list[list[Drawn]] = [[] for _ in paces]
        for ordinal in range(step * GROUPS, (step + 1) * GROUPS):
            mine = queues[draw.randrange(len(paces))]
            mine += [
                Drawn(had=0, length=lengths[ordinal, s], prefill=PROMPT / PREFILL)
                for s in range(SAMPLES)
            ]
        seconds.append(max(schedule(q, 0.0, p) for q, p in zip(queues, paces, strict=True)))
    return seconds


def p99(values: Sequence[float]) -> float:
    """Nearest rank."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def measure() -> Iterator[Figure]:
    """Two distributions, actors of one pace and one at half of it."""
    for kind in ("recorded", "lognormal"):
        lengths = draw_lengths(kind)
        even, uneven = (PACE,) * ACTORS, (PACE / 2, *(PACE,) * (ACTORS - 1))
        yield from _compare(f"{kind}, even", lengths, even, ">= 1.0")
        yield from _compare(f"{kind}, one at half", lengths, uneven, ">= 1.15")


def _compare(
    name: str, lengths: dict[tuple[int, int], int], paces: Sequence[float], bar: str
) -> Iterator[Figure]:
    static, claimed, stealing = (run(way, lengths, paces) for way in (STATIC, CLAIMED, STEALING))
    yield _makespan(name, "static", static.seconds, stealing.seconds, bar)
    yield _makespan(name, "sticky", sticky(lengths, paces), stealing.seconds, "info")
    yield _makespan(name, "claimed", claimed.seconds, stealing.seconds, ">= 1.0")
    steps = [a / b for a, b in zip(static.seconds, stealing.seconds, strict=True)]
    yield level(f"{name}: step, static / stealing", steps, "x", "info")
    share = stealing.again / stealing.sampled
    yield level(f"{name}: taken in again / sampled", [share], "x", "<= 0.25")
    again = stealing.again * TOKEN_BYTES / 1e6
    yield level(f"{name}: token ids taken in again", [again], "MB", "info")
    yield level(f"{name}: groups moved a step", [stealing.moved / STEPS], "groups", "info")


def _makespan(
    name: str, other: str, theirs: Sequence[float], ours: Sequence[float], bar: str
) -> Figure:
    value = p99(theirs) / p99(ours)
    return Figure(
        name=f"{name}: p99, {other} / stealing",
        value=value,
        unit="x",
        bar=bar,
        low=value,
        high=value,
        samples={"ours_seconds": list(ours), "theirs_seconds": list(theirs)},
    )
