"""Run seeds: ``python tests/rollout/simulation/simulate.py 17 18-40``; a single seed prints its trace.

A seed decides everything: the plan, the faults, every delay. The same seed gives the same trace.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from rollout.coordinator.calls.weight_health import WRONG_MAX
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.envelope import Envelope

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "ledger"))
sys.path.append(str(Path(__file__).parents[1] / "coordinator"))

import hash_learner
import workers
from promises import check_always, check_end, read_history
from remembered import check_memory
from scenario import POWER, REFUSED, STOP, Fault, Scenario, build_scenario
from virtual_time import Process, Stuck, heed_end, run_virtual
from world import World

SECONDS_MAX = 1800.0
"""Virtual seconds within which every schedule has ended."""
LOOK_SECONDS = 3.0
QUIET_SECONDS = 20.0
"""A run that has not moved for so long must say whom it waits for."""
SILENT_SECONDS_MAX = 60.0
"""Longest time between two heartbeats of a process that lives: 20 s where its clock is slow, and a call's 30."""
REFUSED_SECONDS_MAX = 12.0  # short: in virtual time
"""Shorter than what makes a process end because all its heartbeats are refused."""
TRACE_LINES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of one schedule. ``broken`` is empty when every promise was kept."""

    scenario: Scenario
    broken: tuple[str, ...]
    trace: tuple[str, ...]
    history: tuple[tuple[str, ...], ...]
    outcome: str
    virtual_seconds: float
    counts: dict[str, int]

    def explain(self) -> str:
        lines = self.trace[-TRACE_LINES:]
        return "\n".join(
            [
                self.scenario.describe(),
                *lines,
                *(f"BROKEN: {text}" for text in self.broken),
                f"again: python tests/rollout/simulation/simulate.py {self.scenario.seed}",
            ]
        )


def simulate(seed: int) -> Report:
    """One schedule, and the undisturbed run where both must be equal."""
    scenario = build_scenario(seed)
    report = run_scenario(scenario)
    if report.broken or not scenario.must_repeat:
        return report
    calm = run_scenario(scenario.calm())
    if calm.broken:
        return _with(report, ("the undisturbed run: " + calm.broken[0],), calm.trace)
    if calm.history != report.history:
        return _with(report, (_difference(calm, report),), report.trace)
    return report


def _with(report: Report, broken: tuple[str, ...], trace: tuple[str, ...]) -> Report:
    from dataclasses import replace

    return replace(report, broken=broken, trace=trace)


def _difference(calm: Report, report: Report) -> str:
    pairs = list(zip(calm.history, report.history, strict=False))
    step = next((n for n, (a, b) in enumerate(pairs, 1) if a != b), len(pairs) + 1)
    return (
        f"from step {step} on ({len(calm.history)} and {len(report.history)} steps) the run is not the"
        " undisturbed one"
    )


def run_scenario(
    scenario: Scenario,
    prepare: Callable[[World], None] = lambda _: None,
    look: Callable[[World], None] = lambda _: None,
) -> Report:
    """One run in virtual time. ``prepare`` sees its world before anything happens, ``look`` after everything has."""
    folder = tempfile.TemporaryDirectory(dir=memory())
    with folder as name, quiet():
        draw = random.Random(f"run {scenario.seed}")
        world = World(scenario, Path(name), draw)
        found: list[str] = []
        ended = [0.0]
        random.seed(scenario.seed)
        prepare(world)

        async def live() -> None:
            try:
                await Story(world).tell()
            finally:
                ended[0] = world.now

        with (
            patch("rollout.actor.loop.play_each", workers.play_each),
            patch("rollout.entrypoints.actor.heed_end", heed_end),
            patch("os.fsync", world.disk.fsync),
        ):
            try:
                run_virtual(live, draw)
            except Stuck as error:
                found.append(str(error))
        file = world.folder / "ledger.db"
        if not found and not world.violations:
            look(world)
        found += [str(one) for one in world.violations]
        return Report(
            scenario=scenario,
            broken=tuple(dict.fromkeys(found)),
            trace=tuple(world.trace),
            history=read_history(file),
            outcome=world.outcome,
            virtual_seconds=ended[0],
            counts=dict(world.counts),
        )


def memory() -> str | None:
    """A folder in memory, where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@contextmanager
def quiet() -> Iterator[None]:
    """What a run logs about its troubles is wanted only by those who ask for it."""
    logger = logging.getLogger("rollout")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)
        logger.setLevel(level)


class Story:
    """One run from start to end."""

    def __init__(self, world: World) -> None:
        self._world, self._scenario = world, world.scenario
        self._moved_at = 0.0
        self._frozen_at = -QUIET_SECONDS
        self._step = -1

    async def tell(self) -> None:
        world = self._world
        beside = [
            asyncio.ensure_future(work)
            for work in (
                world.keep_coordinator(),
                self._inject(),
                self._watch(),
                *(companion() for companion in world.companions),
            )
        ]
        working = [
            asyncio.ensure_future(world.supervise(name, main)) for name, main in self.mains()
        ]
        try:
            await asyncio.wait_for(self._until_ended(working), SECONDS_MAX)
        except TimeoutError:
            world.break_promise(f"not ended within {SECONDS_MAX:.0f} s: {self._describe()}")
        for task in beside:
            task.cancel()
        self.judge()
        await world.close_coordinator()

    def mains(self):
        """The programs of all processes but the coordinator, by name."""
        world = self._world
        yield "learner", lambda process: hash_learner.learn(world, process)
        for index in range(self._scenario.num_actors):
            yield (
                f"actor-{index}",
                lambda process, index=index: workers.act(world, process, index),
            )

    async def _until_ended(self, working: list[asyncio.Task]) -> None:
        """Until the run has an outcome and its workers know."""
        while self._world.outcome == "" or not all(task.done() for task in working):
            status = self._world.status()
            if status is not None and status.outcome is not None:
                self._world.outcome = status.outcome.reason
            if self._world.violations or self._world.outcome not in {"", "Finished"}:
                return
            await asyncio.sleep(0.2)
        await asyncio.sleep(1.0)
        while self._world.coordinator is None:
            await asyncio.sleep(0.2)

    def _describe(self) -> str:
        status = self._world.status()
        if status is None:
            return "no coordinator"
        return (
            f"phase {status.phase}, step {status.step}, waiting {status.waiting}, workers"
            + ", ".join(f" {one.worker}: {one.state} {one.outcome}" for one in status.workers)
        )

    # -- what goes wrong --------------------------------------------------------------------------

    async def _inject(self) -> None:
        for fault in self._scenario.faults:
            await asyncio.sleep(max(0.0, fault.at - self._world.now))
            self._world.say(f"FAULT {fault}")
            self._world.count(f"fault {fault.kind}")
            self._world.wire.spawn(self._befall(fault))

    async def _befall(self, fault: Fault) -> None:
        """A fault that cannot be brought about is a finding, too."""
        try:
            await (self._order_stop() if fault.kind == STOP else self._happen(fault))
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._world.break_promise(f"{fault.kind} could not be brought about: {error!r}")

    async def _happen(self, fault: Fault) -> None:
        world = self._world
        name = "learner" if "learner" in fault.kind else f"actor-{fault.who}"
        process = world.processes.get(name)
        kind = fault.kind.removesuffix("-actor").removesuffix("-learner")
        if process is None:
            return
        if kind == "kill":
            process.kill()
        elif kind == "freeze":
            process.freeze()
            await asyncio.sleep(fault.seconds)
            process.thaw()
        elif kind == "replace":
            process.freeze()
            process.ended.set()
            await asyncio.sleep(fault.seconds)
            process.thaw()
        elif kind == "leave" and signal.SIGTERM in process.handlers:
            process.left = True
            world.count("told to leave")
            process.handlers[signal.SIGTERM]()
            world.gone.add(name)
            await asyncio.sleep(fault.seconds)
            world.gone.discard(name)
        elif kind == "lose":
            await self._lose([name], None if self._scenario.num_actors > 1 else fault.seconds)
        elif kind == "lose-all-actors":
            names = [f"actor-{index}" for index in range(self._scenario.num_actors)]
            await self._lose(names, fault.seconds)
        else:
            await self._trouble_the_place(fault)

    async def _order_stop(self) -> None:
        """As an operator does it: again, until it is acknowledged; a run that is told so goes on no more."""
        world, sender = self._world, Envelope(worker="operator", incarnation=0)
        world.stop_ordered = True
        await world.call(Process("operator"), routes.STOP, m.Stop(reason="Suspended"), sender)
        world.commits_at_stop = len(world.commits)

    async def _lose(self, names: list[str], seconds: float | None) -> None:
        """For good (None), as long as one is left, or for a while."""
        world = self._world
        if seconds is None and len(world.gone | set(names)) >= self._scenario.num_actors:
            seconds = 30.0
        world.gone.update(names)
        for name in names:
            if name in world.processes:
                world.processes[name].kill()
        if seconds is None:
            world.lost_for_good.update(names)
            return
        await asyncio.sleep(seconds)
        world.gone -= set(names) - world.lost_for_good

    async def _trouble_the_place(self, fault: Fault) -> None:
        world = self._world
        if "coordinator" in fault.kind:
            world.down_seconds = fault.seconds
            world.kill_coordinator() if fault.kind[0] == "k" else await world.close_coordinator()
        elif fault.kind == POWER:
            world.down_seconds = fault.seconds
            world.cut_power()
        elif fault.kind == "lose-acknowledgement":
            world.down_seconds = min(fault.seconds, 5.0)
            world.kill_after_commits = fault.who
        elif fault.kind == "kill-at-the-end":
            world.kills_at_the_end.append(int(fault.seconds) % 8)
        else:
            self.trouble_the_parts(fault)

    def trouble_the_parts(self, fault: Fault) -> None:
        """What befalls clocks, weights and the network."""
        world = self._world
        if fault.kind == "skew-ledger-clock":
            world.skew += fault.seconds if fault.who % 2 else -fault.seconds
        elif fault.kind in {"wrong-weights", "never-right-weights"}:
            self._flip_bits(fault)
        elif fault.kind == REFUSED:
            world.refuses_beats_until = world.now + min(fault.seconds, REFUSED_SECONDS_MAX)
        elif fault.kind == "bad-network":
            world.bad_network_until = world.now + fault.seconds

    def _flip_bits(self, fault: Fault) -> None:
        """At most one actor stays wrong, and never the only one: more than half would end the run."""
        world = self._world
        others = [left for who, left in world.wrong_weights.items() if who != fault.who]
        for_good = fault.kind == "never-right-weights" and self._scenario.num_actors > 1
        if for_good and max(others, default=0) < WRONG_MAX:
            world.wrong_weights[fault.who] = int(fault.seconds) + 30
        else:
            world.wrong_weights[fault.who] = 1

    # -- what must hold ---------------------------------------------------------------------------

    async def _watch(self) -> None:
        file = self._world.folder / "ledger.db"
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look_at_hearts()
            if file.exists() and self._world.coordinator is not None:
                for text in self._check_always(file):
                    self._world.break_promise(text)
                self._look_at_status()

    def _check_always(self, file: Path) -> list[str]:
        world = self._world
        whole = not world.began_elsewhere
        return check_always(file, self._scenario, world.lives, is_whole=whole)

    def _look_at_hearts(self) -> None:
        """An actor that lives and works goes on beating, whatever its heartbeats met."""
        world = self._world
        for name, process in world.processes.items():
            if name == "learner" and process.frozen:
                self._frozen_at = world.now
            if process.frozen or not process.alive:
                world.beats.pop(name, None)
            elif world.now - world.beats.get(name, world.now) > SILENT_SECONDS_MAX:
                world.break_promise(f"{name} lives and has not beaten for {SILENT_SECONDS_MAX} s")

    def _look_at_status(self) -> None:
        """While nothing moves, the status names somebody."""
        status = self._world.status()
        if status is None or status.outcome is not None:
            return
        if (status.step, status.position) != self._step:
            self._step, self._moved_at = (status.step, status.position), self._world.now
        if self._world.now - self._moved_at < QUIET_SECONDS:
            return
        named = [one.culprit for one in status.waiting]
        busy = [w for w in status.workers if w.role == "learner" and w.alive and w.state]
        if self._is_asking() and any(one == "nobody: the batch is complete" for one in named):
            self._world.break_promise(f"nobody is waited for, and nothing moves: {status.waiting}")
        if not all(named) or not (named or busy):
            self._world.break_promise(f"nothing moves, and nobody is named: {self._describe()}")

    def _is_asking(self) -> bool:
        """Whether the learner could have come for its batch; a frozen one seems alive by late copies of its heartbeats."""
        return self._world.now - self._frozen_at >= QUIET_SECONDS

    def _count_moves(self) -> None:
        if self._world.coordinator is not None:
            for why, times in self._world.coordinator.run.recalls.told.items():
                self._world.counts[f"moved: {why}"] = times

    def _expected(self) -> set[str]:
        """How this run may end."""
        expected = {"Finished"}
        if self._scenario.broken_task is not None:
            expected.add("RewardError")
        if not self._scenario.plan.numerics.exact:
            expected.add("AllSamplesLost")
        if self._world.stop_ordered:  # the run may have heard it, and the operator not its answer
            expected.add("Stopped")
        return expected

    def _went_on(self) -> bool:
        """Whether more than the step under way was committed after the order to stop."""
        before = self._world.commits_at_stop
        return before is not None and len(self._world.commits) > before + 1

    def judge(self) -> None:
        """What must hold when the run has ended."""
        world = self._world
        file = world.folder / "ledger.db"
        if world.violations:
            return
        for text in (*self._check_always(file), *check_memory(file, world.scenario)):
            world.break_promise(text)
        world._forget_errors()
        self._count_moves()
        if world.outcome not in self._expected():
            world.break_promise(f"the run ended as {world.outcome!r}: {world.status().outcome}")
        elif self._went_on():
            world.break_promise("it went on after an order to stop that was acknowledged")
        elif world.outcome == "Finished" and not world.began_elsewhere:
            for text in check_end(file, world):
                world.break_promise(text)
        with LedgerReader(file) as ledger:
            world.counts["given up"] = ledger.dispositions().get("expired", 0)


def main(arguments: list[str]) -> int:
    """Run the seeds that are asked for; 1 when one of them broke a promise."""
    seeds: list[int] = []
    for argument in arguments:
        first, _, last = argument.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    bad = 0
    for seed in seeds:
        begun = time.perf_counter()
        report = simulate(seed)
        took = time.perf_counter() - begun
        bad += bool(report.broken)
        if report.broken or len(seeds) == 1:
            print(report.explain())
        print(
            f"seed {seed}: {'BROKEN' if report.broken else 'kept'}, {report.outcome} after"
            f" {report.virtual_seconds:.0f} virtual s, {took:.2f} s"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
