"""Plays a part of a life again and again, with a fault at its first call, its second, its third ..."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from endings import differences, end_of
from lives import Life
from operators import Operator, eventually, operating
from puppets import Puppets
from stage import World

from cluster.control.ports import find_free_port
from cluster.kubectl import Kubectl
from faults.kinds import Fault, KillProcess, LoseAnswer
from faults.proxy import Proxy, running
from faults.rules import Record, Rule

CLIENT = "rollout-operator"
CALLS = {"get", "list", "create", "update", "patch", "apply", "delete"}
SPARE_WRITES_MAX = 12
"""What a death or a lost answer may cost: the writes that were under way, and what they are asked again."""
FAULTS: dict[str, Callable[[int], Fault]] = {
    "killed before": lambda pid: KillProcess(pid=pid, performed=False),
    "killed after": lambda pid: KillProcess(pid=pid, performed=True),
    "answer lost": lambda _: LoseAnswer(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A part of a life that was played: its end, and the calls it took."""

    end: dict[str, Any]
    calls: list[Record]

    @property
    def num_writes(self) -> int:
        return sum(one.call.writes for one in self.calls)


@dataclass(slots=True, kw_only=True)
class Crew:
    """A namespace, a proxy, and an operator that is replaced when it dies."""

    kubectl: Kubectl
    puppets: Puppets
    proxy: Proxy
    kubeconfig: Path
    log: Path
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(100))
    _stack: ExitStack = field(default_factory=ExitStack)
    _operator: Operator | None = None

    def world(self) -> World:
        """With an operator that lives."""
        if self._operator is None or self._operator.process.poll() is not None:
            self._stack.close()
            opened = operating(self.kubeconfig, find_free_port(), self.log)
            self._operator = self._stack.enter_context(opened)
        return World(kubectl=self.kubectl, puppets=self.puppets, operator=self._operator)

    def close(self) -> None:
        self._stack.close()

    def play(self, life: Life) -> Played:
        """Without a fault."""
        run = self.next_run()
        world = self.world()
        life.prepare(world, run)
        self.proxy.clear()
        life.act(world, run)
        life.arrive(world, run)
        end = self._rest(world, run)
        calls = self._calls()
        self.kubectl("delete", "rolloutrun", run, "--wait=false")
        return Played(end=end, calls=calls)

    def play_with(self, life: Life, fault: str, number: int, clean: Played) -> bool:
        """With a fault at one call; whether it came to it. Asserts that the end is the clean one."""
        run = self.next_run()
        world = self.world()
        life.prepare(world, run)
        self.proxy.clear()
        kind = FAULTS[fault](world.operator.process.pid)
        rule = self.proxy.inject(Rule(client=CLIENT, verbs=CALLS, first=number, fault=kind))
        life.act(world, run)
        where = f"{life.name}, {fault} at call {number}; log: {self.log}"
        eventually(
            lambda: self.proxy.matched(rule) >= number or self._same(world, run, clean), where
        )
        met = self.proxy.matched(rule) >= number
        if met and isinstance(kind, KillProcess):
            world.operator.process.wait(30)
        world = self.world()
        life.arrive(world, run)
        try:
            eventually(lambda: self._same(world, run, clean), where, seconds=30, every=0.3)
        except AssertionError:
            found = differences(end_of(world, run), clean.end)[:10]
            raise AssertionError(f"{where}: the end is another one: {found}") from None
        writes = [one.call for one in self._calls() if one.call.writes]
        assert len(writes) <= clean.num_writes + SPARE_WRITES_MAX, (where, writes)
        self.kubectl("delete", "rolloutrun", run, "--wait=false")
        return met

    def play_under(
        self, life: Life, rules: Iterable[Rule], clean: Played, seconds_max: float = 60.0
    ) -> None:
        """With rules in force from the act on. Asserts that the end is the clean one, events left out.

        ``seconds_max``: pauses grow with each fault that a run meets in a row.
        """
        run = self.next_run()
        world = self.world()
        life.prepare(world, run)
        self.proxy.clear()
        for rule in rules:
            self.proxy.inject(rule)
        life.act(world, run)
        _arrive(life, world, run, seconds_max)
        wanted = {**clean.end, "events": []}

        def left() -> list[str]:
            return differences({**end_of(world, run), "events": []}, wanted)[:10]

        try:
            eventually(lambda: not left(), life.name, seconds=seconds_max, every=0.5)
        except AssertionError:
            raise AssertionError(f"{life.name}: the end is another one: {left()}") from None
        assert world.operator.process.poll() is None
        self.proxy.clear()
        self.kubectl("delete", "rolloutrun", run, "--wait=false")

    def next_run(self) -> str:
        return f"run{next(self._numbers)}"

    def _same(self, world: World, run: str, clean: Played) -> bool:
        return not differences(end_of(world, run), clean.end)

    def _rest(self, world: World, run: str) -> dict[str, Any]:
        """The end, once two looks in a row have shown the same."""
        ends = [end_of(world, run)]

        def at_rest() -> bool:
            ends.append(end_of(world, run))
            return ends[-1] == ends[-2]

        eventually(at_rest, "the run does not come to rest", every=2.0)
        return ends[-1]

    def _calls(self) -> list[Record]:
        found = (one for one in self.proxy.records() if CLIENT in one.call.client)
        return [one for one in found if one.call.verb in CALLS]


def _arrive(life: Life, world: World, run: str, seconds_max: float) -> None:
    """As often as a life's own wait is too short."""
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            life.arrive(world, run)
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        else:
            return


@contextmanager
def crew(kubectl: Kubectl, puppets: Puppets, folder: Path) -> Iterator[Crew]:
    """Everything that is needed, for a block."""
    path = folder / "kubeconfig"
    with running(kubectl.kubeconfig) as proxy:
        path.write_text(proxy.kubeconfig())
        made = Crew(
            kubectl=kubectl, puppets=puppets, proxy=proxy, kubeconfig=path, log=folder / "log"
        )
        try:
            yield made
        finally:
            made.close()


def spread(num_calls: int, num_wanted: int) -> Iterable[int]:
    """Some of the calls, from the first to the last."""
    step = max(1, (num_calls - 1) // max(1, num_wanted - 1))
    return range(1, num_calls + 1, step)[:num_wanted]
