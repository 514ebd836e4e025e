"""Which groups an idle actor is given from another's hands: pure decisions over what heartbeats say.

A group moves when it would end sooner by more than a margin, with the prefill of what there is of it
counted in: samples that wait for a place move easily, long ones under way hardly ever (a move that gains
nothing made steps 18 to 20 % slower: verl#6533). Its samples that have ended travel as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from rollout.coordinator.rules.lengths import Lengths
from rollout.protocol.messages import TaskProgress

PREFILL_SPEED = 20.0
"""Tokens that an engine takes in while one sample grows by one: low for a GPU, about right for a CPU."""
STEALS_MAX = 8
"""Groups that one look moves to one actor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """An actor at work. ``pace``: tokens a second of one sample; ``tasks`` in the order of their turn."""

    worker: str
    pace: float
    tasks: tuple[TaskProgress, ...]

    @property
    def num_running(self) -> int:
        """Samples that grow at the same time: as many places as the actor is known to have."""
        return sum(len(task.running) for task in self.tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """An actor without work. ``pace`` 0: as the others'."""

    worker: str
    pace: float = 0.0


@dataclass(slots=True)
class _Bench:
    """What an idle actor would have taken so far: ``seconds`` until it could begin another group."""

    pace: float
    places: int
    tokens: float = 0.0
    taken: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.tokens / (self.pace * self.places)


def plan_steals(
    loads: Sequence[WorkerLoad],
    idle: Sequence[Idle],
    lengths: Lengths,
    margin_seconds: float,
    settled: frozenset[str] = frozenset(),
) -> dict[str, str]:
    """Task -> idle actor, for tasks that are to be moved; those in ``settled`` stay where they are."""
    known = [load for load in loads if load.pace > 0 and load.num_running]
    if not known or not idle or not lengths.known:
        return {}
    mean_pace = sum(load.pace for load in known) / len(known)
    places = max(load.num_running for load in known)
    benches = {one.worker: _Bench(one.pace or mean_pace, places) for one in idle}
    ends = {load.worker: _ends(load, lengths, frozenset()) for load in known}
    here = {
        (task.task_id, bench.pace): seconds_here(task, bench.pace, lengths)
        for bench in benches.values()
        for load in known
        for task in load.tasks
    }
    moves: dict[str, str] = {}
    while True:
        found = _best(ends, here, benches, settled | moves.keys())
        if found is None or found[0] <= margin_seconds:
            return moves
        _, task, owner, worker = found
        moves[task.task_id] = worker
        benches[worker].taken.append(task.task_id)
        benches[worker].tokens += _tokens_left(task, lengths)
        left = next(load for load in known if load.worker == owner)
        ends[owner] = _ends(left, lengths, moves.keys())


def _best(
    ends: Mapping[str, Sequence[tuple[TaskProgress, float]]],
    here: Mapping[tuple[str, float], float],
    benches: Mapping[str, _Bench],
    settled: AbstractSet[str],
) -> tuple[float, TaskProgress, str, str] | None:
    """The move that gains most: seconds, what, from whom, and to whom."""
    free = [(name, one) for name, one in benches.items() if len(one.taken) < STEALS_MAX]
    if not free:
        return None
    worker, bench = min(free, key=lambda item: item[1].seconds)
    best: tuple[float, TaskProgress, str, str] | None = None
    for owner, tasks in ends.items():
        for task, seconds in tasks:
            gain = seconds - bench.seconds - here[task.task_id, bench.pace]
            if task.task_id not in settled and (best is None or gain > best[0]):
                best = (gain, task, owner, worker)
    return best


def _ends(
    load: WorkerLoad, lengths: Lengths, gone: AbstractSet[str]
) -> Sequence[tuple[TaskProgress, float]]:
    """When each task of an actor would end, in seconds from now, were those in ``gone`` taken away."""
    places = max(1, load.num_running)
    tasks = [task for task in load.tasks if task.task_id not in gone]
    ahead = sum(lengths.remaining(n) for task in tasks for n in task.running)
    found: list[tuple[TaskProgress, float]] = []
    for task in tasks:
        seconds = max((lengths.remaining(n) for n in task.running), default=0.0) / load.pace
        if task.num_queued:
            ahead += task.num_queued * lengths.remaining(0)
            begins = max(0.0, ahead - task.num_queued * lengths.remaining(0)) / places
            longest = lengths.longest_of(task.num_queued)
            seconds = max(seconds, (begins + longest) / load.pace)
        found.append((task, seconds))
    return found


def seconds_here(task: TaskProgress, pace: float, lengths: Lengths) -> float:
    """How long an actor without work would need for it: prefill, then the longest of its samples."""
    left = [lengths.remaining(n) for n in task.running]
    if task.num_queued:
        left.append(lengths.longest_of(task.num_queued))
    return prefill_tokens(task) / (PREFILL_SPEED * pace) + max(left, default=0.0) / pace


def prefill_tokens(task: TaskProgress) -> int:
    """Tokens that another engine has to take in before it goes on."""
    again = sum(task.prompt_tokens + n for n in task.running)
    return again + (task.prompt_tokens if task.num_queued else 0)


def _tokens_left(task: TaskProgress, lengths: Lengths) -> float:
    running = sum(lengths.remaining(n) for n in task.running)
    return running + task.num_queued * lengths.remaining(0) + prefill_tokens(task) / PREFILL_SPEED


def deadline_seconds(pace: float, lengths: Lengths, factor: float) -> float | None:
    """How long a group may be drawn before it is given to another actor; None while nothing says."""
    if not lengths.known or pace <= 0:
        return None
    return factor * lengths.quantile(0.99) / pace
