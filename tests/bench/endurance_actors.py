"""10,000 open tasks taken by 10 actors and by 1,000: what the coordinator spends on a trajectory.

Actors are tasks of one process over a connection each: register, then claim, say a heartbeat, submit, until the step
has all its results; whoever finds nothing waits at the coordinator, as real actors do. The coordinator's own CPU is
taken from the first claim to the commit. Sides take turns.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from coordinators import Running, run_coordinator
from fake_run import SECRET
from figures import Figure, level, ratio

from rollout.objects.filesystem import FilesystemStore
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.auth import token_for
from rollout.protocol.client import BUSY, CoordinatorClient
from rollout.protocol.envelope import Envelope
from rollout.types import Trajectory, VersionSpan, WeightVersion

TASKS, SAMPLES, AT_ONCE, TOKENS = 10_000, 2, 4, 100
FEW, MANY = 10, 1_000
STEPS = 2
WAIT_SECONDS = 20.0


def measure() -> Iterator[Figure]:
    """Microseconds of the coordinator a trajectory on both sides, and their ratio."""
    with tempfile.TemporaryDirectory(prefix="rollout-bench-actors-") as name:
        spent = asyncio.run(_measure(Path(name)))
    for number, values in spent.items():
        scaled = [1e6 * one for one in values]
        yield level(f"endurance: CPU per trajectory, {number:,} actors", scaled, "us", "info")
    yield ratio(
        f"endurance: CPU per trajectory, {MANY:,} actors over {FEW}",
        *(spent[FEW], spent[MANY]),
        "<= 1.5",
    )


async def _measure(folder: Path) -> dict[int, list[float]]:
    few, many = folder / "few", folder / "many"
    with (
        run_coordinator(few, TASKS, SAMPLES) as one,
        run_coordinator(many, TASKS, SAMPLES) as other,
    ):
        fleets = {FEW: Fleet(one, few, FEW), MANY: Fleet(other, many, MANY)}
        spent: dict[int, list[float]] = {number: [] for number in fleets}
        try:
            for fleet in fleets.values():
                await fleet.start()
            for _ in range(STEPS):
                for number, fleet in fleets.items():
                    spent[number].append(await fleet.step() / (TASKS * SAMPLES))
        finally:
            for fleet in fleets.values():
                await fleet.close()
        return spent


@dataclass(frozen=True, slots=True)
class Caller:
    """One simulated actor's way to the coordinator."""

    http: aiohttp.ClientSession
    url: str
    envelope: Envelope

    async def call(self, route: routes.Route, ask: Any) -> Any:
        """The answer, asked for again while the coordinator is busy, as workers do. Raises aiohttp.ClientError."""
        headers = {"Content-Type": "application/msgpack", **self.envelope.headers()}
        body = msgspec.msgpack.encode(ask)
        while True:
            async with self.http.post(self.url + route.path, data=body, headers=headers) as answer:
                if answer.status not in BUSY:
                    answer.raise_for_status()
                    return msgspec.msgpack.decode(await answer.read(), type=route.answer)
            await asyncio.sleep(float(answer.headers.get("Retry-After", "1")))


class Fleet:
    """A coordinator's actors and its learner."""

    def __init__(self, running: Running, folder: Path, number: int) -> None:
        self._running, self._number = running, number
        self._store = FilesystemStore(folder / "objects")
        self._callers: list[Caller] = []
        token = {"Authorization": f"Bearer {token_for(SECRET, 'actor')}"}
        self._http = aiohttp.ClientSession(
            headers=token,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=600),
        )
        self._step = 0

    async def start(self) -> None:
        """Register everybody and publish the first version."""
        client = CoordinatorClient.connect(self._running.url, token_for(SECRET, "learner"))
        learner = client.as_worker("learner")
        begun = await asyncio.to_thread(learner.call, routes.START, m.LearnerStart())
        self._learner = client.as_worker("learner", begun.incarnation)
        self._weights = self._store.put(b"weights")
        first = m.PublishInitial(version=self._version(0))
        await asyncio.to_thread(self._learner.call, routes.PUBLISH_INITIAL, first)
        self._callers = [await self._register(f"actor-{n}") for n in range(self._number)]

    async def _register(self, name: str) -> Caller:
        caller = Caller(self._http, self._running.url, Envelope(worker=name))
        answer = await caller.call(routes.REGISTER, m.Register())
        envelope = Envelope(worker=name, incarnation=answer.incarnation)
        return Caller(self._http, self._running.url, envelope)

    async def step(self) -> float:
        """One step of all tasks; the coordinator's CPU seconds."""
        before = self._running.cpu_seconds()
        self._step += 1
        acting = [asyncio.create_task(self._act(caller)) for caller in self._callers]
        ask = m.BatchRequest(step=self._step, wait_seconds=60.0)
        batch = await asyncio.to_thread(self._learner.call, routes.BATCH, ask)
        while batch.waiting is not None:
            batch = await asyncio.to_thread(self._learner.call, routes.BATCH, ask)
        spent = self._running.cpu_seconds() - before
        for task in acting:
            task.cancel()
        ends = await asyncio.gather(*acting, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end
        began = self._running.cpu_seconds()
        await asyncio.to_thread(self._learner.call, routes.COMMIT, self._commit(batch))
        return spent + self._running.cpu_seconds() - began

    async def _act(self, caller: Caller) -> None:
        while True:
            ask = m.Claim(tasks_max=AT_ONCE, wait_seconds=WAIT_SECONDS)
            tasks = (await caller.call(routes.CLAIM, ask)).tasks
            if not tasks:
                continue
            held = tuple(task.task_id for task in tasks)
            await caller.call(routes.ACTOR_HEARTBEAT, m.Heartbeat(task_ids=held, state="working"))
            results = tuple(map(_answer, tasks))
            await caller.call(routes.SUBMIT, m.Submit(results=results))

    def _version(self, step: int) -> WeightVersion:
        return WeightVersion(lineage=0, step=step, digest=self._weights, object=self._weights)

    def _commit(self, batch: m.Batch) -> m.Commit:
        assert batch.cursor is not None
        return m.Commit(
            step=self._step,
            lineage=0,
            consumed=tuple(name for group in batch.ids for name in group),
            plan={},
            version=self._version(self._step),
            chain=f"blake3:{self._step:064x}",
            cursor=batch.cursor,
        )

    async def close(self) -> None:
        """Hang up."""
        await self._http.close()


def _answer(task: m.Task) -> m.TaskResult:
    made = tuple(_sample(task, sample) for sample in range(SAMPLES))
    return m.TaskResult(task_id=task.task_id, epoch=task.epoch, trajectories=made)


def _sample(task: m.Task, sample: int) -> Trajectory:
    version = task.version
    span = VersionSpan(start=0, end=TOKENS, lineage=version.lineage, step=version.step)
    return Trajectory(
        ordinal=task.ordinal,
        sample=sample,
        prompt_ids=tuple(range(20)),
        token_ids=tuple(range(TOKENS)),
        actor_logprobs=(-0.123456,) * TOKENS,
        loss_mask=(1,) * TOKENS,
        spans=(span,),
        rewards={"exact-match": float(sample)},
        reward=float(sample),
        ending="stop",
        text="198",
        prompt_text="99+99=",
        answer="198",
        timings={"generate": 0.01},
    )
