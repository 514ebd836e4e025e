"""Runs the points of a sweep, each in a process of its own; what is finished already is not run again.

A point that fails stops no other; one that loses (``halving``) saves itself and stays stopped, and a fork of a winner
may take its place. Killed, or interrupted with Ctrl-C, a sweep goes on where it was when the same command is given
again: finished points are skipped, begun ones resumed, forks kept. Who lost, and what is forked, is written into
``sweep.json`` before anybody is told to stop.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rollout.common.atomic_files import replace_text
from rollout.common.child_processes import start_tied
from rollout.errors import SpecError
from rollout.runs.pipeline import find_output
from rollout.runs.prepare import prepare_run
from rollout.runs.run_dir import RunDir
from rollout.supervisor.launch import read_result
from rollout.supervisor.sweeps.book import Entry, Sweep, read_stopped, write_state
from rollout.supervisor.sweeps.earlier import find_earlier, reaches
from rollout.supervisor.sweeps.forking import (
    Forking,
    awaits_snapshot,
    describe_fork,
    plan_forks,
    read_forks,
)
from rollout.supervisor.sweeps.halving import PointsComparer
from rollout.supervisor.sweeps.points import Point
from rollout.supervisor.watch import EXIT_GATE, EXIT_INTERRUPTED, EXIT_OK
from rollout_api.sweeps.halving import Loser

POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0
"""Between two looks at what points have reported."""
INTERRUPTED_SECONDS_MAX = 120.0
"""How long an interrupted point, or one that lost, may take to save its state; then it is killed."""
MESSAGE_MAX = 400
FINISHED = (EXIT_OK, EXIT_GATE)
"""Exit codes of a run that went to its end; a gate may have refused it."""

Running = dict[str, tuple[Entry, "subprocess.Popen[bytes]"]]


def run_points(sweep: Sweep, points: Sequence[Point]) -> list[Entry]:
    """Run what is not finished; returns every point's end, in the order given.

    Raises SpecError before anything starts when a point cannot be run.
    """
    _require_places_apart(points)
    for folder in ("points", "logs"):
        (sweep.folder / folder).mkdir(parents=True, exist_ok=True)
    entries, resumed = gather(sweep, points)
    write_state(sweep, entries)
    running: Running = {}
    try:
        _run_all(sweep, entries, resumed, running)
    except KeyboardInterrupt:
        _interrupt(sweep, running)
    finally:
        for _, process in running.values():
            process.kill()
        write_state(sweep, entries)
    return entries


def gather(sweep: Sweep, points: Sequence[Point]) -> tuple[list[Entry], dict[str, str]]:
    """Points and forks as earlier lives have left them, and the folders of those that are gone on with.

    A fork that has not begun stays where its winner still has the run that it is of.
    """
    stopped = read_stopped(sweep) if sweep.halving is not None else {}
    entries: list[Entry] = []
    resumed: dict[str, str] = {}
    there: dict[str, str] = {}
    for entry in [*(Entry(point=point) for point in points), *read_forks(sweep)]:
        name, begun = entry.point.name, entry.forked_from
        waits = entry.state == "waiting" and not awaits_snapshot(entry)
        folder = _look_back(sweep, entry, stopped) if waits else None
        if folder is not None:
            resumed[name] = folder
        run = RunDir(path=sweep.home / folder) if folder is not None else entry.run
        if run is not None:
            there[name] = str(run.path)
        elif begun is not None and there.get(begun.name) != begun.run_dir:
            continue
        entries.append(entry)
    return entries, resumed


def _require_places_apart(points: Sequence[Point]) -> None:
    """Models of several points in one place would be refused one after the other, when they have been trained."""
    places = [find_output(prepare_run(point.document).spec) for point in points]
    taken = [place for place in places if place is not None]
    if len(set(taken)) < len(taken):
        raise SpecError(
            f"spec.train.output.uri: {len(taken)} points of a sweep would write their models to {taken[0]}; leave it"
            " out, and take the best one home by rollout model export"
        )


def _run_all(
    sweep: Sweep,
    entries: list[Entry],
    resumed: Mapping[str, str],
    running: Running,
) -> None:
    losing = None if sweep.halving is None else Losing(comparer=PointsComparer(sweep.halving))
    forking = Forking()
    while running or any(entry.state == "waiting" for entry in entries):
        if forking.save(sweep, entries):
            write_state(sweep, entries)
        while (entry := choose_next(sweep, entries, running)) is not None:
            resume = resumed.get(entry.point.name)
            number = entries.index(entry) + 1
            how = f"going on with {resume}" if resume else "running"
            sweep.tell(f"point {number} of {len(entries)}: {entry.point.name}: {how}")
            running[entry.point.name] = (entry, _start(sweep, entry.point, resume))
            entry.state = "running"
        time.sleep(POLL_SECONDS)
        if losing is not None:
            losing.stop_losers(sweep, entries, running)
        for name, (entry, process) in list(running.items()):
            if process.poll() is not None:
                del running[name]
                _finish(sweep, entry, process.returncode)
                write_state(sweep, entries)
                if entry.state == "interrupted":
                    raise KeyboardInterrupt


def choose_next(sweep: Sweep, entries: Sequence[Entry], running: Running) -> Entry | None:
    """Who begins now: forks first, which hold the place of a loser while their snapshots are made."""
    ready = [one for one in entries if one.state == "waiting" and not awaits_snapshot(one)]
    held = [
        one
        for one in entries
        if awaits_snapshot(one) and one.forked_from is not None and one.forked_from.name in running
    ]
    free = sweep.parallel - len(running)
    forks = [one for one in ready if one.forked_from is not None]
    if forks and free > 0:
        return forks[0]
    return ready[0] if ready and free > len(held) else None


@dataclass(slots=True, kw_only=True)
class Losing:
    """Points that lost and have been told to save themselves. ``due``: when each is killed."""

    comparer: PointsComparer
    looked_at: float = 0.0
    due: dict[str, float] = field(default_factory=dict)

    def stop_losers(self, sweep: Sweep, entries: list[Entry], running: Running) -> None:
        """Once a second: who loses, and what takes its place, is written down; then losers are told."""
        now = time.monotonic()
        if now - self.looked_at < LOOK_SECONDS:
            return
        self.looked_at = now
        losers = self._look(sweep, entries, running)
        for lost in losers:
            entry, _ = running[lost.name]
            entry.state, entry.message = "stopped", lost.explain()
        forks = plan_forks(sweep, entries, losers, self.comparer)
        entries += forks
        if losers:
            write_state(sweep, entries)
        for lost in losers:
            sweep.tell(f"{lost.name}: stopped: {lost.explain()}")
            running[lost.name][1].send_signal(signal.SIGINT)
            self.due[lost.name] = now + INTERRUPTED_SECONDS_MAX
        for one in forks:
            sweep.tell(f"{one.point.name}: {describe_fork(one)}")
        for name, (_, process) in running.items():
            if self.due.get(name, math.inf) < now:
                process.kill()

    def _look(self, sweep: Sweep, entries: Sequence[Entry], running: Running) -> Sequence[Loser]:
        """Who loses now, by what each has reported, which is noted."""
        runs = {one.point.name: run for one in entries if (run := _locate(sweep, one)) is not None}
        at_work = [name for name, (entry, _) in running.items() if entry.state == "running"]
        begun = ((one.point.name, one.forked_from) for one in entries)
        self.comparer.past = {name: fork.step for name, fork in begun if fork is not None}
        losers = self.comparer.look(runs, at_work)
        for entry in entries:
            entry.rungs = self.comparer.rungs(entry.point.name)
            entry.step, entry.value = self.comparer.last(entry.point.name)
        return losers


def _locate(sweep: Sweep, entry: Entry) -> RunDir | None:
    """The folder of a point's run, once it has one."""
    if entry.run is None and entry.state == "running":
        wanted = prepare_run(entry.point.document).spec
        entry.run = find_earlier(sweep.home, entry.point.name, wanted)
    return entry.run


def _look_back(sweep: Sweep, entry: Entry, stopped: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Take an earlier run of this point as it is, or return the name of the directory to go on with."""
    wanted = prepare_run(entry.point.document).spec
    earlier = find_earlier(sweep.home, entry.point.name, wanted)
    if earlier is None:
        return None
    result = read_result(earlier)
    if result.get("exit_code") in FINISHED and reaches(earlier, wanted):
        entry.run, entry.state, entry.skipped = earlier, "finished", True
        entry.exit_code = int(result["exit_code"])
        sweep.tell(f"{entry.point.name}: finished before, in {earlier.name}")
        return None
    lost = stopped.get(entry.point.name)
    if lost is not None and lost.get("run_dir") == str(earlier.path):
        entry.run, entry.state, entry.skipped = earlier, "stopped", True
        entry.message = str(lost.get("message") or "it lost")[:MESSAGE_MAX]
        sweep.tell(f"{entry.point.name}: stopped before, in {earlier.name}: {entry.message}")
        return None
    return earlier.name


def _start(sweep: Sweep, point: Point, resume: str | None) -> subprocess.Popen[bytes]:
    manifest = sweep.folder / "points" / f"{point.name}.yaml"
    # JSON is YAML: nothing of the document is lost or reinterpreted on the way.
    replace_text(manifest, json.dumps(point.document.data, indent=1) + "\n")
    words = ["run", "-f", str(manifest), *(["--resume", resume] if resume else [])]
    # A session of its own, so that Ctrl-C is ours to pass on; tied to us, so that nothing is left behind.
    start = partial(
        start_tied, "rollout", *words, env={**os.environ, "ROLLOUT_HOME": str(sweep.home)}
    )
    if sweep.shows:
        return start(stdout=sys.stderr.fileno())
    with _log(sweep, point).open("ab") as log:
        return start(stdout=log)


def _log(sweep: Sweep, point: Point) -> Path:
    return sweep.folder / "logs" / f"{point.name}.log"


def _finish(sweep: Sweep, entry: Entry, code: int) -> None:
    """Note how a point ended, and tell it."""
    wanted = prepare_run(entry.point.document).spec
    entry.run = find_earlier(sweep.home, entry.point.name, wanted)
    entry.exit_code = code
    result = {} if entry.run is None else read_result(entry.run)
    if code in FINISHED:
        entry.state = "finished"
    elif entry.state == "stopped" and code == EXIT_INTERRUPTED:
        return  # told already
    else:
        entry.state = "interrupted" if code == EXIT_INTERRUPTED else "failed"
    if code != EXIT_OK:
        entry.message = str(result.get("message") or _last_words(sweep, entry.point))[:MESSAGE_MAX]
    said = f": {entry.message}" if entry.message else ""
    sweep.tell(f"{entry.point.name}: {entry.state} (exit code {code}){said}")


def _last_words(sweep: Sweep, point: Point) -> str:
    """What a point that never became a run has said."""
    if sweep.shows:
        return "it never began; see above"
    lines = _log(sweep, point).read_text(errors="replace").strip().splitlines()
    errors = [line for line in lines if re.match(r"error: |\w*(Error|Exception)\b", line)]
    return (errors or lines or ["it never began"])[-1].removeprefix("error: ")


def _interrupt(sweep: Sweep, running: Running) -> None:
    """Pass Ctrl-C on and wait until everybody has saved; who lost has been told before."""
    for entry, process in running.values():
        if process.poll() is None and entry.state != "stopped":
            process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + INTERRUPTED_SECONDS_MAX
    for name, (entry, process) in list(running.items()):
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        del running[name]
        _finish(sweep, entry, process.returncode)
        if entry.state == "failed":
            entry.state = "interrupted"
