"""A run in virtual time: the real coordinator, the real actor loop, a small learner, and what befalls them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
from places import EPOCH, SimulatedLedger
from power import Disk, Store
from scenario import LIMITS, Scenario
from virtual_time import Process

from rollout.codec import name_trajectory
from rollout.coordinator.dispatcher import Coordinator, open_coordinator
from rollout.coordinator.status.overview import build_status
from rollout.errors import CoordinatorError, LedgerRewound, RolloutError
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.client import BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS, PATIENCE_SECONDS
from rollout.protocol.envelope import Envelope
from rollout.protocol.refusals import read_refusal
from rollout.protocol.routes import ROUTES, Route
from rollout.protocol.status import Status

WRITES = frozenset(
    f"/v1/{path}"
    for path in (
        "actor/submit",
        "learner/publish-initial",
        "learner/commit",
        "learner/anchor",
        "learner/fork",
        "learner/failed",
        "actor/outcome",
        "learner/outcome",
    )
)
"""Calls whose success changes the run: nobody who was replaced may have one."""


BEAT, OUTCOME = routes.ACTOR_HEARTBEAT.path, routes.ACTOR_OUTCOME.path
REGISTER = routes.REGISTER.path


class Broken(AssertionError):  # noqa: N818 - it is a finding
    """A promise that was not kept."""


class Rows:
    def train(self, ordinals):
        return [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in ordinals]

    def evaluation(self, name, split, positions):
        return [{"prompt": f"{name}/{split}/{n}", "answer": str(n)} for n in positions]


def accuracy(rewards):
    mean = sum(sum(sample) / len(sample) for sample in rewards) / len(rewards)
    return {"accuracy": {"value": mean, "low": mean, "high": mean}}


class LastTold:
    """A tracker that keeps what it was told last of each step, and its order."""

    def __init__(self) -> None:
        self.lineages: dict[int, int] = {}

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.lineages.pop(step, None)
        self.lineages[step] = metrics["lineage"]

    def close(self, outcome: Any = None) -> None:
        pass


class Unreachable(Exception):  # noqa: N818 - as the client's own
    """No answer to this attempt."""


class World:
    """Shared by everything in one simulated run. ``draw`` is the only source of chance."""

    def __init__(self, scenario: Scenario, folder: Path, draw: random.Random) -> None:
        self.scenario, self.folder, self.draw = scenario, folder, draw
        self.trace: list[str] = []
        self.stop_ordered = False
        self.commits_at_stop: int | None = None
        self.processes: dict[str, Process] = {}
        self.wire = Process("wire")
        self.newest: dict[str, int] = {}
        self.acknowledged: dict[tuple[str, int], tuple[str, ...]] = {}
        self.commits: dict[tuple[int, int], str] = {}
        self.skew = 0.0
        self.lives: list[float] = []
        self.kills_at_the_end: list[int] = []
        self.kill_after_commits: int | None = None
        self.down_seconds = 0.5
        self.wrong_weights: dict[int, int] = {}
        self.gone: set[str] = set()
        self.lost_for_good: set[str] = set()
        self.outcome = ""
        self.bad_network_until = 0.0
        self.refuses_beats_until = 0.0
        self.beats: dict[str, float] = {}
        """When an actor's heartbeat was last on its way; one that registers beats not yet, one whose work is over tells
        its outcome only."""
        self.failed_once: set[str] = set()
        self.failures: dict[str, int] = {}
        self.rows: Any = Rows()
        self.results: Any = None
        """What writes the files of an inference run, where it is one."""
        self.guard: Any = None
        """What spares the objects that snapshots name, where some are taken."""
        self.tracker = LastTold()
        self.companions: list[Callable[[], Coroutine]] = []
        """Who else lives beside the run."""
        self.began_elsewhere = False
        """Whether its first steps were taken by another run, whose history is not here."""
        self.coordinator: Coordinator | None = None
        self.ledger: SimulatedLedger | None = None
        self.violations: list[Broken] = []
        self.counts: dict[str, int] = {}
        (folder / "snapshots").mkdir()
        self.store = Store(folder / "objects")
        self.disk = Disk(folder, spared="ledger.db")

    # -- what anybody may ask ---------------------------------------------------------------------

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def ledger_clock(self) -> float:
        return EPOCH + self.now + self.skew

    def say(self, text: str) -> None:
        self.trace.append(f"{self.now:8.3f}  {text}")

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def break_promise(self, text: str) -> None:
        self.say(f"BROKEN: {text}")
        self.violations.append(Broken(text))

    def status(self) -> Status | None:
        return None if self.coordinator is None else build_status(self.coordinator.run)

    # -- processes --------------------------------------------------------------------------------

    async def supervise(self, name: str, main: Callable[[Process], Coroutine]) -> None:
        """Start ``name`` again until the coordinator knows of its good end; not while it is to stay away."""
        while True:
            while name in self.gone:
                await asyncio.sleep(0.5)
                if self.outcome:
                    return
            process = self.processes[name] = Process(name)
            ended_well = await self._live(process, main)
            if ended_well and not process.left:
                return
            await asyncio.sleep(self.draw.uniform(0.2, 4.0))

    async def _live(self, process: Process, main: Callable[[Process], Coroutine]) -> bool:
        task = process.spawn(main(process))
        replaced = asyncio.ensure_future(process.ended.wait())
        await asyncio.wait([task, replaced], return_when=asyncio.FIRST_COMPLETED)
        replaced.cancel()
        if not task.done():
            return False  # Its supervisor believes that it is dead; it may wake up.
        process.alive = False
        if task.cancelled():
            return False
        error = task.exception()
        if error is not None and not isinstance(error, RolloutError):
            self.say(f"{process.name} raised {error!r}")
            self.violations.append(Broken(f"{process.name} raised {error!r}"))
        self.say(f"{process.name} ended {'well' if error is None else repr(error)[:150]}")
        process.kill()
        return process.said_end

    # -- the coordinator --------------------------------------------------------------------------

    async def keep_coordinator(self) -> None:
        """One life after the other, for ever."""
        while True:
            process = self.processes["coordinator"] = Process("coordinator")
            task = process.spawn(self._coordinate())
            died = asyncio.ensure_future(process.died.wait())
            await asyncio.wait([task, died], return_when=asyncio.FIRST_COMPLETED)
            if process.alive:
                self.break_promise(f"the coordinator cannot start: {task.exception()!r}")
                return
            await asyncio.gather(task, return_exceptions=True)
            if self.ledger is not None:
                self.ledger.drop()
            self.say(f"coordinator is down for {self.down_seconds:.1f} s")
            await asyncio.sleep(self.down_seconds)

    async def _coordinate(self) -> None:
        loop = asyncio.get_running_loop()
        self.ledger = SimulatedLedger(
            self.folder / "ledger.db", LIMITS, self.ledger_clock, self.draw, self._committed
        )
        coordinator = await open_coordinator(
            self.scenario.plan,
            self.ledger,
            self.store,
            self.rows,
            snapshots=self.folder / "snapshots",
            summarise=accuracy,
            clock=loop.time,
        )
        coordinator.run.results = self.results
        coordinator.run.guard = self.guard
        coordinator.run.trackers = (self.tracker,)
        self.coordinator = coordinator
        if not any(fault.kind == "skew-ledger-clock" for fault in self.scenario.faults):
            self.lives.append(self.ledger_clock())
        self.say(f"coordinator serves step={coordinator.run.state.step}")
        await asyncio.Event().wait()

    def _committed(self) -> None:
        """Between a commit and its answer."""
        self.count("transactions")
        run = None if self.coordinator is None else self.coordinator.run
        if self.kills_at_the_end and run is not None and run.state.step == run.plan.train.steps_max:
            self.kill_after_commits = self.kills_at_the_end.pop()
        if self.kill_after_commits is not None:
            self.kill_after_commits -= 1
            if self.kill_after_commits < 0:
                self.kill_after_commits = None
                self.say("coordinator killed between a commit and its answer")
                self.kill_coordinator()

    def kill_coordinator(self) -> None:
        """SIGKILL: what was not committed never happened."""
        if not self.processes["coordinator"].alive:
            return
        if self.ledger is not None:
            self.ledger.drop()
        self._forget_errors()
        self.coordinator = None
        self.processes["coordinator"].kill()

    def cut_power(self) -> None:
        """All processes die with their machine, and what was not flushed is gone."""
        self.kill_coordinator()
        for process in self.processes.values():
            process.kill()
        if self.ledger is not None:
            self.ledger.cut()
        lost = self.disk.cut()
        self.counts["files lost"] = self.counts.get("files lost", 0) + lost
        self.say(f"the power goes, and {lost} files with it")
        self.store.open()

    async def close_coordinator(self) -> None:
        """SIGTERM: an orderly end."""
        coordinator, process = self.coordinator, self.processes["coordinator"]
        if coordinator is None or not process.alive:
            return
        closing = process.spawn(coordinator.close())
        await asyncio.wait([closing], timeout=30.0)
        if process.alive:
            self.kill_coordinator()

    def _forget_errors(self) -> None:
        if self.coordinator is not None and self.coordinator.unexpected_errors:
            self.break_promise(f"{self.coordinator.unexpected_errors} internal errors")

    # -- the network ------------------------------------------------------------------------------

    async def call(
        self, process: Process, route: Route, ask: m.WireMessage, sender: Envelope
    ) -> bytes:
        """As ``CoordinatorClient`` does it: repeat with back-off, bounded, until there is an answer."""
        path, wait = route.path, route.wait_seconds(ask)
        deadline = self.now + PATIENCE_SECONDS + wait
        pause, body = BACKOFF_FIRST_SECONDS, msgspec.msgpack.encode(ask)
        while True:
            self._watch_heart(process.name, path)
            await process.gate()
            replaced = self._is_replaced(sender)
            try:
                status, answer = await self._send(path, sender, body, wait + 30.0)
            except Unreachable as error:
                trouble = str(error)
            else:
                await process.gate()
                self._note(process, path, ask, status, replaced)
                if status == 200:
                    return answer
                if status != 503:
                    raise read_refusal(path, status, answer)
                trouble = "503"
            if self.now + pause > deadline:
                raise CoordinatorError(f"no answer from the coordinator to {path}: {trouble}")
            await asyncio.sleep(pause * self.draw.uniform(0.5, 1.0))
            pause = min(pause * 2, BACKOFF_MAX_SECONDS)

    def _watch_heart(self, name: str, path: str) -> None:
        if path == BEAT:
            self.beats[name] = self.now
        elif path in {REGISTER, OUTCOME}:
            self.beats.pop(name, None)

    def _is_replaced(self, sender: Envelope) -> bool:
        return 0 < sender.incarnation < self.newest.get(sender.worker, 0)

    def _note(
        self, process: Process, path: str, ask: m.WireMessage, status: int, replaced: bool
    ) -> None:
        if not path.endswith("heartbeat") or status not in {200, 503}:
            what = getattr(ask, "step", "") or ""
            self.say(f"{process.name} {path} {what} -> {status}")
        if replaced and path in WRITES and status == 200:
            self.break_promise(f"{process.name} was replaced, and its {path} was accepted")

    async def _send(
        self, path: str, sender: Envelope, body: bytes, timeout: float
    ) -> tuple[int, bytes]:
        await asyncio.sleep(self.draw.uniform(0.001, 0.05))
        if path == BEAT and self.now < self.refuses_beats_until:
            self.count("refused heartbeats")
            return 422, msgspec.msgpack.encode(
                m.Refusal(error="CoordinatorError", message="the coordinator refuses it")
            )
        rough = self.scenario.network
        if self.now < self.bad_network_until:
            rough = 0.4
        chance = self.draw.random()
        if chance < rough * 0.4:
            self._deliver_later(path, sender, body)
            raise Unreachable("the connection broke; the request is still on its way")
        if chance < rough * 0.7:
            self._deliver_later(path, sender, body)
        answer = await self._deliver(path, sender, body, timeout)
        await asyncio.sleep(self.draw.uniform(0.001, 0.05))
        if chance > 1.0 - rough * 0.3:
            raise Unreachable("the answer was lost")
        return answer

    def _deliver_later(self, path: str, sender: Envelope, body: bytes) -> None:
        """A copy that comes when nobody expects it any more."""
        seconds = self.draw.choice([self.draw.uniform(0.0, 1.0), self.draw.uniform(1.0, 40.0)])
        self.count("late copies")

        async def late() -> None:
            await asyncio.sleep(seconds)
            if self.coordinator is not None and self.processes["coordinator"].alive:
                self.say(f"a late copy of {path} arrives")
                self.processes["coordinator"].spawn(
                    self._handle(self.coordinator, path, sender, body)
                )

        self.wire.spawn(late())

    async def _handle(
        self, coordinator: Coordinator, path: str, sender: Envelope, body: bytes
    ) -> tuple[int, bytes]:
        return await coordinator.handle(ROUTES[path], sender, body)

    async def _deliver(
        self, path: str, sender: Envelope, body: bytes, timeout: float
    ) -> tuple[int, bytes]:
        coordinator, process = self.coordinator, self.processes["coordinator"]
        if coordinator is None or not process.alive:
            raise Unreachable("connection refused")
        handling = process.spawn(self._handle(coordinator, path, sender, body))
        died = asyncio.ensure_future(process.died.wait())
        await asyncio.wait([handling, died], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if not handling.done() or handling.cancelled():
            raise Unreachable("the connection was cut")
        return handling.result()


class Client:
    """The coordinator's client of one simulated process: its calls give awaitables."""

    def __init__(
        self, world: World, process: Process, sender: Envelope | None = None, seen: Any = None
    ) -> None:
        self._world, self._process = world, process
        self._sender, self._seen = sender or Envelope(), seen or [0]

    def as_worker(self, worker: str, incarnation: int = 0) -> Client:
        sender = Envelope(worker=worker, incarnation=incarnation)
        return Client(self._world, self._process, sender, self._seen)

    def tell_to_go(self) -> None:
        """A call that waits is repeated with back-off as before: what this shortens is not simulated."""

    def call(self, route: Route, ask: Any) -> Any:
        """An activation is told by a plain function in a thread, which throws the answer away."""
        calling = self._call(route, ask)
        if route is not routes.ACTIVATION:
            return calling
        loop: Any = asyncio.get_running_loop()
        loop.owed.append(calling)
        return None

    async def _call(self, route: Route, ask: Any) -> Any:
        body = await self._world.call(self._process, route, ask, self._sender)
        self._check_position()
        return self._note(route, ask, msgspec.msgpack.decode(body, type=route.answer))

    def _check_position(self) -> None:
        ledger = self._world.ledger
        if ledger is None or ledger.writer.closed:
            return
        if ledger.position < self._seen[0]:
            raise LedgerRewound(f"{self._seen[0]} -> {ledger.position}")
        self._seen[0] = ledger.position

    def _note(self, route: Route, ask: Any, done: Any) -> Any:
        """What the world remembers of an answer."""
        world, worker = self._world, self._sender.worker
        if route in {routes.REGISTER, routes.START}:
            world.newest[worker] = max(world.newest.get(worker, 0), done.incarnation)
        if route is routes.REGISTER:
            world.beats[worker] = world.now
            drift = world.scenario.drift.get(worker, 1.0)
            return msgspec.structs.replace(done, heartbeat_seconds=done.heartbeat_seconds * drift)
        if route is routes.SUBMIT:
            for result, accepted in zip(ask.results, done.accepted, strict=True):
                if accepted and result.failure is None:
                    world.acknowledged[result.task_id, result.epoch] = tuple(
                        name_trajectory(made) for made in result.trajectories
                    )
        elif route is routes.COMMIT:
            world.commits[ask.lineage, ask.step] = ask.chain
        elif route in {routes.ACTOR_OUTCOME, routes.LEARNER_OUTCOME}:
            self._process.said_end = ask.ok
        return done
