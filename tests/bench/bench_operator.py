"""The operator on a real control plane, beside what else there is: JobSet, LeaderWorkerSet, KubeRay, a bare
operator in Go that makes the same children, and a bare client that makes the same writes.

One control plane without nodes, StatefulSet and Job controllers off, so that children make no pods
(LeaderWorkerSet is counted on its Service and its leader's StatefulSet). Everybody is an ordinary user of the
API server, a process of its own with its shipped settings, and works alone, in turns. Rates are what the
audit log says between a contender's first write and its last. Sizes come from the environment:

    OPERATOR_SIZES=1,100,1000,5000 OPERATOR_PAIRS=5 OPERATOR_RUNS=30 OPERATOR_SETS=40 OPERATOR_SINGLES=100

Sections: ``single``, ``pairs``, ``scale``; without one, all of them.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from figures import Figure, level
from operator_contenders import Process, operating
from operator_load import User
from operator_plane import Plane, number, open_plane, user_of
from operator_turns import Stage, Turn

IDLE_SECONDS = 30.0
IDLE_WINDOWS_MAX = 30
IDLE_LOOKS_MAX = 2.0
"""Looks at a run in an hour of an idle cluster: one at the hourly resync. Controllers of Kubernetes that are behind cause more."""
RESYNC_SECONDS = 15
RESYNC_RUNS = 1000
RIVALS = ("jobset", "lws", "kuberay")
SECTIONS = ("single", "pairs", "scale")


def measure(*sections: str) -> Iterator[Figure]:
    """Every figure of the operator."""
    if unknown := set(sections) - set(SECTIONS):
        raise ValueError(f"no section {unknown}; there are: {', '.join(SECTIONS)}")
    began = time.monotonic()
    wanted = sections or SECTIONS
    with open_plane(RIVALS if "pairs" in wanted else ()) as plane:
        stage = Stage(plane=plane, user=User(kubeconfig=plane.kubeconfig("load")))
        stage.learn()
        _say(f"control plane with a pattern of {stage.children} children", began)
        parts = {"single": _singles, "pairs": _pairs, "scale": _scale}
        for name in wanted:
            yield from parts[name](stage)
            _say(name, began)


# -- one run on an idle cluster -----------------------------------------------------------------------


def _singles(stage: Stage) -> Iterator[Figure]:
    count = number("OPERATOR_SINGLES", 100)
    with operating(stage.plane) as process:
        stage.single(process, stage.plane.tail())
        tail = stage.plane.tail()
        taken = sorted(stage.single(process, tail) for _ in range(count))
    yield _plain("one run, apply to all children, median", [statistics.median(taken)], "ms")
    worst = taken[min(count - 1, int(0.99 * count))]
    yield Figure(
        name="one run, apply to all children, p99",
        value=worst,
        unit="ms",
        bar="<= 300",
        low=taken[0],
        high=worst,
        samples={"values": taken},
    )


# -- beside the others ----------------------------------------------------------------------------------


def _pairs(stage: Stage) -> Iterator[Figure]:
    runs, sets = number("OPERATOR_RUNS", 30), number("OPERATOR_SETS", 40)
    contenders: dict[str, Callable[[], Turn]] = {
        "ours": lambda: stage.ours(runs),
        "ceiling": lambda: stage.ceilings(runs),
        "twin": lambda: stage.twins(runs),
        **{name: partial(stage.rivals, name, sets) for name in RIVALS},
    }
    turns: dict[str, list[Turn]] = {name: [] for name in contenders}
    for _ in range(number("OPERATOR_PAIRS", 5)):
        for name in list(turns):
            try:
                turns[name].append(contenders[name]())
            except RuntimeError as error:
                sys.stderr.write(f"{name} is out: {error}\n")
                del turns[name]
    ours = turns["ours"]
    if "ceiling" in turns:
        against = _ratios(ours, turns["ceiling"], lambda turn: turn.window.writes_per_second)
        yield level("API writes per second over the ceiling's", against, "x", ">= 0.8")
    for name in (*RIVALS, "twin"):
        if name not in turns:
            continue
        against = _ratios(ours, turns[name], lambda turn: turn.window.children_per_second)
        bar = "info" if name == "twin" else "> 1"
        yield level(f"children per second over {name}'s", against, "x", bar)
    for name, played in turns.items():
        yield from _describe(name, played)


def _ratios(ours: Sequence[Turn], theirs: Sequence[Turn], rate: object) -> list[float]:
    assert callable(rate)
    return [rate(mine) / rate(other) for mine, other in zip(ours, theirs, strict=True)]


def _describe(name: str, turns: Sequence[Turn]) -> Iterator[Figure]:
    windows = [turn.window for turn in turns]
    yield _plain(f"{name}: API writes per second", [w.writes_per_second for w in windows], "1/s")
    yield _plain(f"{name}: children per second", [w.children_per_second for w in windows], "1/s")
    yield _plain(f"{name}: CPU per child", [turn.cpu_per_child for turn in turns], "ms")
    per_child = [1024 * turn.peak_megabytes / turn.window.children for turn in turns]
    yield _plain(f"{name}: peak memory", [turn.peak_megabytes for turn in turns], "MB")
    yield _plain(f"{name}: peak memory per child of a turn", per_child, "kB")
    yield from _requests(name, turns[-1])


def _requests(name: str, turn: Turn) -> Iterator[Figure]:
    """By verb; resource and answer of each are in the raw samples."""
    verbs = sorted({what.partition(" ")[0] for what in turn.requests})
    for verb in verbs:
        parts = {
            what: [count / turn.sets]
            for what, count in turn.requests.items()
            if what.startswith(f"{verb} ")
        }
        count = sum(value for (value,) in parts.values())
        yield Figure(
            name=f"{name}: requests, {verb}",
            value=count,
            unit="per set",
            bar="info",
            low=count,
            high=count,
            samples=parts,
        )


# -- many runs --------------------------------------------------------------------------------------------


def _scale(stage: Stage) -> Iterator[Figure]:
    """Runs are added until there are so many; the operator starts anew after the resync."""
    sizes = [int(size) for size in os.environ.get("OPERATOR_SIZES", "1,100,1000,5000").split(",")]
    small = [size for size in sizes if size <= RESYNC_RUNS]
    large = [size for size in sizes if size > RESYNC_RUNS]
    there = 0
    for part in (small, large):
        if not part:
            continue
        with operating(stage.plane) as process:
            for size in part:
                runs = stage.suspended(process, size - there)
                yield from _size(size, stage.work_off(process, runs), process)
                there = size
        if part is small:
            yield from _resync(stage.plane, there)


def _size(size: int, turn: Turn, process: Process) -> Iterator[Figure]:
    name, seen = f"{size} runs", turn.window
    # every run is looked at once more after its last write
    while process.metric("rollout_queue_depth"):
        time.sleep(0.5)
    process.wait_until_calm()
    idle, looks = _idle(process, size)
    last_status = seen.last_write - turn.released
    yield _plain(f"{name}: added in the end", [turn.sets], "runs")
    yield _plain(f"{name}: release to all children", [seen.last_child - turn.released], "s")
    yield _plain(f"{name}: release to the last status or event", [last_status], "s")
    yield _plain(f"{name}: API writes per second", [seen.writes_per_second], "1/s")
    yield _plain(f"{name}: children per second", [seen.children_per_second], "1/s")
    yield _plain(f"{name}: CPU per run", [1000 * turn.cpu_seconds / turn.sets], "ms")
    yield level(f"{name}: idle CPU", [idle], "%", "<= 2")
    yield _plain(f"{name}: idle, looks at a run", [looks], "1/h")
    bar = "<= 350" if size >= 5000 else "info"
    yield level(f"{name}: peak memory", [process.peak_megabytes()], "MB", bar)
    yield from _requests(name, turn)


def _idle(process: Process, size: int) -> tuple[float, float]:
    """CPU in percent of a core, and looks at a run in an hour, of the first window in which the cluster is idle; else of the last."""
    idle = looks = 0.0
    for _ in range(IDLE_WINDOWS_MAX):
        now, looked = time.time(), process.metric("rollout_reconcile_total")
        time.sleep(IDLE_SECONDS)
        idle = 100 * process.cpu_between(now, now + IDLE_SECONDS) / IDLE_SECONDS
        looks = (process.metric("rollout_reconcile_total") - looked) * 3600 / IDLE_SECONDS / size
        if looks <= IDLE_LOOKS_MAX:
            break
    return idle, looks


def _resync(plane: Plane, runs: int) -> Iterator[Figure]:
    began = time.monotonic()
    tail = plane.tail()
    with operating(plane, ROLLOUT_RESYNC_SECONDS=str(RESYNC_SECONDS)) as process:
        started = time.monotonic() - began
        seen = process.metric("rollout_reconcile_total")
        while process.metric("rollout_reconcile_total") < seen + 2 * runs:
            time.sleep(0.5)
        calls = [call for call in tail.read(user_of("rollout")) if call.wrote]
    yield _plain(f"start of the operator with {runs} runs", [started], "s")
    yield level(f"writes in a start and a resync of {runs} runs", [len(calls)], "writes", "<= 0")


def _plain(name: str, values: Sequence[float], unit: str) -> Figure:
    return level(name, values, unit, "info")


def _say(what: str, began: float) -> None:
    sys.stderr.write(f"[{time.monotonic() - began:.0f} s] {what}\n")
