"""What a run costs when it is old and when it is large: a ledger of a million trajectories, a thousand actors, weeks.

``run.py endurance age`` (a minute or two, after a ledger of 10^6 was made, once, in another two; 1.5 GB in
the user's cache): a coordinator opens it, tasks are claimed and steps committed in turn with a coordinator over 10^4,
``rollout runs show`` and ``report`` read it. ``endurance actors``: one step's 10,000 open tasks taken by 10 simulated
actors and by 1,000. ``endurance weeks MINUTES``: a run of small steps, and what its processes hold.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "rollout" / "console"))
sys.path.append(str(Path(__file__).parents[1] / "rollout" / "ledger"))

import endurance_actors
import endurance_weeks
from coordinators import Running, run_coordinator
from endurance_ledger import METRICS, copy_ledger, draw_trajectories, get_ledger, name_chain
from endurance_ledger import name_version as version_of
from fake_run import GROUPS, IDENTITY, SAMPLES, SECRET
from figures import Figure, level, ratio

from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.auth import token_for
from rollout.protocol.client import CoordinatorClient

YOUNG, OLD = 10_000, 1_000_000
ROUNDS, WARM = 24, 4
READS, OPENINGS = 3, 3


def measure(section: str = "all", *arguments: str) -> Iterator[Figure]:
    """All figures, or those of one section. Raises KeyError for an unknown one."""
    for figures in SECTIONS.values() if section == "all" else [SECTIONS[section]]:
        yield from figures(*arguments)


def age() -> Iterator[Figure]:
    """A run that has 10^6 trajectories behind it, beside one that has 10^4."""
    with tempfile.TemporaryDirectory(prefix="rollout-bench-endurance-") as name:
        folder = Path(name)
        for number in (OLD, YOUNG):
            made, seconds = get_ledger(number)
            size = (made / "ledger.db").stat().st_size / 1e9
            yield level(f"endurance: ledger of {number:,}, to make it", [seconds], "s", "info")
            yield level(f"endurance: ledger of {number:,}, its file", [size], "GB", "info")
            copy_ledger(made, folder / str(number))
        yield from _reading(folder)
        yield from _opening(folder)
        yield from _working(folder)


def _reading(folder: Path) -> Iterator[Figure]:
    home = folder / "home"
    run = write_run(home, folder / str(OLD))
    for command, bar in (("show", "<= 2"), ("report", "<= 15")):
        seconds = [_read(home, command) for _ in range(READS)]
        yield level(f"endurance: runs {command} at {OLD:,}", seconds, "s", bar)
    shutil.rmtree(run)


def write_run(home: Path, ledger: Path) -> Path:
    """A run's folder around a ledger, as the commands that read one expect it."""
    from console_kit import write_config

    folder = write_config(home, IDENTITY.name)
    config = folder / "worker.json"
    said = config.read_text()
    for known, ours in (("uid-1", IDENTITY.uid), ("blake3:" + "0" * 64, IDENTITY.spec_digest)):
        said = said.replace(f'"{known}"', f'"{ours}"')
    config.write_text(said)
    os.link(ledger / "ledger.db", folder / "ledger.db")
    return folder


def _read(home: Path, command: str) -> float:
    began = time.perf_counter()
    words = [sys.executable, "-m", "rollout", "runs", command, IDENTITY.name]
    done = subprocess.run(
        words, env={**os.environ, "ROLLOUT_HOME": str(home)}, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"runs {command} ended with {done.returncode}:\n{done.stderr}")
    return time.perf_counter() - began


def _opening(folder: Path) -> Iterator[Figure]:
    """From the start of the coordinator's process to the first claim's answer: Python's own start is inside."""
    for number in (OLD, YOUNG):
        seconds = []
        for _ in range(OPENINGS):
            began = time.perf_counter()
            with run_coordinator(folder / str(number)) as running:
                Steps(running, "actor-0", learns=False).claim(1)
                seconds.append(time.perf_counter() - began)
        bar = "<= 3" if number == OLD else "info"
        yield level(f"endurance: open to first claim at {number:,}", seconds, "s", bar)


def _working(folder: Path) -> Iterator[Figure]:
    """Steps in turn; the coordinators' own CPU for each call."""
    with run_coordinator(folder / str(OLD)) as old, run_coordinator(folder / str(YOUNG)) as young:
        sides = {OLD: Steps(old, "actor-0"), YOUNG: Steps(young, "actor-0")}
        spent: dict[int, list[dict[str, float]]] = {number: [] for number in sides}
        for number in range(ROUNDS + WARM):
            for key in list(sides) if number % 2 else list(reversed(sides)):
                taken = sides[key].step()
                if number >= WARM:
                    spent[key].append(taken)
    for call, bar in (("claim", "<= 1.5"), ("submit", "info"), ("commit", "<= 1.5")):
        ours, theirs = ([one[call] for one in spent[key]] for key in (YOUNG, OLD))
        yield ratio(f"endurance: CPU of {call}, {OLD:,} over {YOUNG:,}", ours, theirs, bar)


class Steps:
    """An actor and a learner that only move messages, one step at a time. Tasks that an earlier life held come again."""

    def __init__(self, running: Running, actor: str, *, learns: bool = True) -> None:
        self._running = running
        self._actor = self._join(actor, "actor", routes.REGISTER, m.Register())[0]
        if learns:
            ask = m.LearnerStart()
            self._learner, started = self._join("learner", "learner", routes.START, ask)
            self._step, self._version = started.committed_step, started.initial
            assert self._version is not None

    def _join(self, name: str, role, route, ask):
        client = CoordinatorClient.connect(self._running.url, token_for(SECRET, role))
        answer = client.as_worker(name).call(route, ask)
        return client.as_worker(name, answer.incarnation), answer

    def claim(self, number: int) -> tuple[m.Task, ...]:
        """Tasks that are there. Raises AssertionError for none."""
        tasks = self._actor.call(routes.CLAIM, m.Claim(tasks_max=number, wait_seconds=5.0)).tasks
        assert tasks
        return tasks

    def step(self) -> dict[str, float]:
        """One step; the coordinator's CPU seconds for each of its calls."""
        marks = [self._running.cpu_seconds()]

        def mark() -> None:
            marks.append(self._running.cpu_seconds())

        tasks = self.claim(GROUPS)
        mark()
        results = tuple(map(_answer, tasks))
        self._actor.call(routes.SUBMIT, m.Submit(results=results))
        mark()
        self._step += 1
        ask = m.BatchRequest(step=self._step, wait_seconds=5.0)
        batch = self._learner.call(routes.BATCH, ask)
        mark()
        self._learner.call(routes.COMMIT, self._commit(batch))
        mark()
        names = ("claim", "submit", "batch", "commit")
        return {
            name: after - before
            for name, before, after in zip(names, marks, marks[1:], strict=False)
        }

    def _commit(self, batch: m.Batch) -> m.Commit:
        assert batch.cursor is not None
        assert len(batch.groups) == GROUPS
        return m.Commit(
            step=self._step,
            lineage=0,
            consumed=tuple(name for group in batch.ids for name in group),
            plan={},
            version=version_of(self._step, self._version.object),
            chain=name_chain(self._step),
            cursor=batch.cursor,
            metrics=METRICS,
        )


def _answer(task: m.Task) -> m.TaskResult:
    made = draw_trajectories(task.ordinal, task.version.step)
    assert len(made) == SAMPLES
    return m.TaskResult(task_id=task.task_id, epoch=task.epoch, trajectories=made)


SECTIONS: Mapping[str, Callable[..., Iterator[Figure]]] = {
    "age": age,
    "actors": endurance_actors.measure,
    "weeks": endurance_weeks.measure,
}
