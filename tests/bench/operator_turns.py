"""One turn of one contender: its objects are made, it works, the audit log and /proc say what that took."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from operator_audit import Call, Tail, Window, count_by_verb, window
from operator_contenders import Process, ceiling, operating, rival, twin
from operator_load import Made, User
from operator_pattern import read_pattern
from operator_plane import Plane, user_of, write_json
from operator_sets import ANOTHER, BUILDERS, CHILDREN, PATHS, build_run

QUIET_SECONDS = 1.0
SINGLE_QUIET_SECONDS = 0.3
STUCK_SECONDS_MAX = 90.0
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one contender did and used. ``released``: when the user's first call came in."""

    sets: int
    window: Window
    released: float
    cpu_seconds: float
    peak_megabytes: float
    requests: Counter[str]

    @property
    def cpu_per_child(self) -> float:
        """Milliseconds."""
        return 1000 * self.cpu_seconds / max(1, self.window.children)


@dataclass(slots=True, kw_only=True)
class Stage:
    """A plane, somebody who makes objects, and the pattern of our operator's writes."""

    plane: Plane
    user: User
    pattern: Path | None = None
    children: int = 0
    _made: int = 0
    _spaces: int = 0

    def learn(self) -> None:
        """Let our operator make one run, and keep what it wrote."""
        with operating(self.plane) as process:
            tail = self.plane.tail()
            run = self.make_runs(1, suspend=False)[0]
            follow(tail, process, lambda calls: any(c.resource == "events" for c in calls))
            pattern = read_pattern(self.plane.kubectl, run)
        self.pattern = write_json(self.plane.folder / "pattern.json", pattern)
        self.children = len(pattern["children"]) + 1

    def make_runs(self, count: int, *, suspend: bool = True, manager: str = "") -> list[Made]:
        """Runs that are like no other ones, in a namespace of their own."""
        first, self._made = self._made, self._made + count
        runs = (
            build_run(index, suspend=suspend, manager=manager)
            for index in range(first, first + count)
        )
        return self.user.make("run", self._space(), runs)

    def work_off(self, process: Process, runs: list[Made]) -> Turn:
        """Release runs and wait until everything about them is written."""
        process.wait_until_calm()
        tail = self.plane.tail()
        wanted = len(runs) * self.children
        self.user.release(runs)
        calls = follow(tail, process, lambda found: _count_children(found) >= wanted)
        return _turn(process, len(runs), calls)

    def ours(self, count: int) -> Turn:
        """Our operator, with runs that were suspended."""
        with operating(self.plane) as process:
            runs = self.suspended(process, count)
            return self.work_off(process, runs)

    def suspended(self, process: Process, count: int) -> list[Made]:
        """Runs whose suspension our operator has told."""
        tail = self.plane.tail()
        runs = self.make_runs(count)
        follow(tail, process, lambda calls: _count(calls, "rolloutruns/status") >= count)
        return runs

    def twins(self, count: int) -> Turn:
        """The Go twin, with runs that were suspended."""
        assert self.pattern is not None
        runs = self.make_runs(count, manager=ANOTHER)
        with twin(self.plane, self.pattern) as process:
            time.sleep(1)
            return self.work_off(process, runs)

    def ceilings(self, count: int) -> Turn:
        """The bare client; the runs are released meanwhile, as for the others."""
        assert self.pattern is not None
        runs = self.make_runs(count, manager=ANOTHER)
        with ceiling(self.plane, self.pattern) as process:
            process.wait_until_calm()
            tail = self.plane.tail()
            user = threading.Thread(target=self.user.release, args=(runs,))
            user.start()
            _tell(process, runs)
            user.join()
            wanted = count * self.children
            calls = follow(tail, process, lambda found: _count_children(found) >= wanted)
            turn = _turn(process, count, calls)
        self._delete("rolloutruns", runs[0].namespace)  # the twin would take them up
        return turn

    def rivals(self, name: str, count: int) -> Turn:
        """Another operator, with sets of its own that are made while it runs."""
        space = self._space()
        with rival(self.plane, name) as process:
            time.sleep(2)
            process.wait_until_calm()
            tail = self.plane.tail()
            self.user.make(name, space, (BUILDERS[name](index) for index in range(count)))
            wanted = count * CHILDREN[name]
            calls = follow(tail, process, lambda found: _count_children(found) >= wanted)
            turn = _turn(process, count, calls)
        self._delete(PATHS[name].rpartition("/")[2], space)
        return turn

    def single(self, process: Process, tail: Tail) -> float:
        """Milliseconds from the arrival of one new run to its last child, on an idle cluster."""
        self.make_runs(1, suspend=False)
        calls = follow(
            tail,
            process,
            lambda found: _count_children(found) >= self.children,
            quiet=SINGLE_QUIET_SECONDS,
            poll=SINGLE_QUIET_SECONDS / 10,
        )
        user = user_of("load")
        arrived = next(c.began for c in calls if c.user == user and c.resource == "rolloutruns")
        return 1000 * (window(c for c in calls if c.user != user).last_child - arrived)

    def _delete(self, plural: str, space: str) -> None:
        self.plane.kubectl("delete", plural, "--all", "-n", space, "--wait=false")

    def _space(self) -> str:
        self._spaces += 1
        return self.plane.make_namespace(f"space-{self._spaces}")


def follow(
    tail: Tail,
    process: Process,
    enough: Callable[[list[Call]], bool],
    *,
    quiet: float = QUIET_SECONDS,
    poll: float = POLL_SECONDS,
) -> list[Call]:
    """Calls of a contender, and of the user, until it has done enough and writes no more.

    Raises RuntimeError when it stops before.
    """
    user, found, changed = user_of(process.name), list[Call](), time.monotonic()
    done = False
    while True:
        new = tail.read(user, user_of("load"))
        found += new
        if any(call.wrote for call in new):
            changed = time.monotonic()
        silent = time.monotonic() - changed
        done = done or enough([call for call in found if call.user == user])
        if done and silent >= quiet:
            return found
        if silent > STUCK_SECONDS_MAX or process.popen.poll() is not None:
            said = count_by_verb(call for call in found if call.user == user)
            log = process.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{process.name} stopped after {dict(said)}:\n{log}")
        time.sleep(poll)


def _turn(process: Process, sets: int, calls: list[Call]) -> Turn:
    user = user_of(process.name)
    mine = [call for call in calls if call.user == user]
    seen = window(mine)
    return Turn(
        sets=sets,
        window=seen,
        released=min(call.began for call in calls if call.user != user),
        cpu_seconds=process.cpu_between(seen.began, seen.last_write),
        peak_megabytes=process.peak_megabytes(),
        requests=count_by_verb(mine),
    )


def _tell(process: Process, runs: list[Made]) -> None:
    assert process.popen.stdin is not None
    assert process.popen.stdout is not None
    lines = [{"name": run.name, "namespace": run.namespace, "uid": run.uid} for run in runs]
    process.popen.stdin.write(json.dumps(lines) + "\n")
    process.popen.stdin.flush()
    if not process.popen.stdout.readline():
        raise RuntimeError(f"the ceiling ended:\n{process.log.read_text()[-2000:]}")


def _count_children(calls: list[Call]) -> int:
    return sum(call.made_child for call in calls)


def _count(calls: list[Call], resource: str) -> int:
    return sum(call.wrote and call.resource == resource for call in calls)
