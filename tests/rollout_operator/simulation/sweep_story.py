"""The life of a RolloutSweep in virtual time: the real manager and client, a model of the API server, and runs that come up, report and end.

``python sweep_story.py SEED`` tells a story again, line by line. Drawn are how many runs there are, whether losers are
stopped, when the sweep is suspended and by whom a run is, and what fails. No story of a single run hears of it: those
seeds tell what they told.
"""

from __future__ import annotations

import asyncio
import random
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

if __name__ == "__main__":
    import conftest  # noqa: F401 - the paths

import aiohttp
from model_cluster import ModelCluster, is_ready
from model_objects import Body, Change, ModelObjects, Write
from model_requests import Chaos, Exchange, ModelSession, Response
from simulate_operator import (
    _NOBODY,
    BEGIN,
    OwnKinds,
    build_leader,
    build_manager,
    build_surroundings,
    heard,
)
from virtual_time import Process, run_virtual
from worlds import SPEC

from rollout_api import names
from rollout_operator.controller.clocks import Clocks
from rollout_operator.kube.informer import Informer
from rollout_operator.kube.resources import OWN_KINDS
from rollout_operator.manager import Manager

SWEEP = "rates"
PLACE = ("rolloutsweeps", "ns", SWEEP)
PERSON = "kubectl"
RATE = "train.optimizer.adamw.learningRate"
OVER_SECONDS, REST_SECONDS, POLL_SECONDS = 7200.0, 40.0, 0.5
RUNG, GOAL = 2, 3
LIVES_MAX = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStory:
    """``halves``: of so many runs all but one lose. ``by_hand``: the run that a person has suspended, and resumes at the end."""

    seed: int
    num_runs: int
    halves: bool
    suspensions: int
    by_hand: int | None

    def spec(self) -> Body:
        values = [f"{number + 1}e-5" for number in range(self.num_runs)]
        halving = {"firstStep": RUNG, "factor": 2, "minRuns": self.num_runs}
        more = {"earlyStopping": {"halving": halving}} if self.halves else {}
        return {
            "parameters": [{"field": RATE, "values": values}],
            "parallelism": self.num_runs,
            "template": {"spec": SPEC},
            **more,
        }

    def losers(self) -> set[str]:
        """Rewards rise with the number: the better half, rounded up, goes on."""
        kept = -(-self.num_runs // 2)
        lost = range(self.num_runs - kept) if self.halves else range(0)
        return {names.sweep_run_name(SWEEP, number) for number in lost}


def build_sweep_story(seed: int) -> SweepStory:
    draw = random.Random(f"sweep {seed}")
    num_runs = draw.choice([2, 3])
    return SweepStory(
        seed=seed,
        num_runs=num_runs,
        halves=draw.random() < 0.7,
        suspensions=draw.choice([1, 1, 2]),
        by_hand=draw.choice([None, None, num_runs - 1]),
    )


@dataclass(slots=True, kw_only=True)
class SweepLife:
    """What came of a story."""

    story: SweepStory
    broken: list[str] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)
    events: list[str] = field(default_factory=list)
    num_lives: int = 0
    num_calls: int = 0
    log: list[str] = field(default_factory=list)

    def explain(self) -> str:
        command = f"python tests/rollout_operator/simulation/sweep_story.py {self.story.seed}"
        return "\n".join([str(self.story), *self.log[-80:], *self.broken, command])


class SweptCluster(ModelCluster):
    """Runs report a reward that rises with their number, and stand still at their goal until they may end."""

    def work(self) -> None:
        for place, run in self.model.of_kind("rolloutruns"):
            if (attempt := self._attempt_at_work(place[2], run["spec"])) is None:
                continue
            before = run.get("status", {}).get("progress", {})
            same = before.get("attempt") == attempt
            if same and before.get("outcome"):
                continue
            step = min(GOAL, before.get("step", 0) + 1)
            reward = f"0.{int(place[2][-3:]) + 1}"
            progress: Body = {"attempt": attempt, "step": step, "rewardMean": reward}
            progress["outcome"] = None
            if self._coordinator(place[2]) in self.stopped:
                progress["outcome"] = {"kind": "Stopped", "reason": "Suspended"}
            elif step == GOAL and self.may_end:
                progress["outcome"] = {"kind": "Succeeded", "reason": "Completed"}
            if progress != {**before, "outcome": before.get("outcome")}:
                self.model.merge(
                    "rollout-coordinator", place, {"status": {"progress": progress}}, "status"
                )


class SweepTheatre:
    """A cluster with one sweep, and operators that come and go."""

    def __init__(self, chaos: Chaos, draw: random.Random, life: SweepLife) -> None:
        self.chaos, self.draw, self.life, self.story = chaos, draw, life, life.story
        self.promises = self
        self.loop = asyncio.get_running_loop()
        self.model = ModelObjects(now=self.stamp, judge=self.judge, changed=self.changed)
        self.cluster = SweptCluster(model=self.model, draw=draw, now=self.stamp)
        self.sessions: list[ModelSession] = []
        self.tasks: list[asyncio.Task] = []
        self.made: Counter[str] = Counter()
        self.process = Process("nobody")
        self.process.kill()

    # -- what is watched ----------------------------------------------------------------------------------

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.loop.time())

    def stamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def say(self, words: str) -> None:
        self.life.log.append(f"{self.loop.time():9.3f} {words}")

    def fail(self, words: str) -> None:
        self.life.broken.append(f"{self.loop.time():9.3f} {words}")

    def judge(self, write: Write) -> None:
        """Before it is done: a run is made once, and what a person has suspended is not touched."""
        if write.place[0] == "events" and write.live is None and write.body is not None:
            self.life.events.append(write.body["reason"])
        if write.place[0] != "rolloutruns" or write.who == PERSON or write.part:
            return
        name = write.place[2]
        if write.verb == "create" and write.live is None:
            self.made[name] += 1
            if self.made[name] > 1:
                self.fail(f"{name} is made for the {self.made[name]}th time")
        wanted = ((write.body or {}).get("spec") or {}).get("suspend")
        if wanted is False and name == self.by_hand and self.is_held_by_hand():
            self.fail(f"{name} goes on, which a person has suspended")

    @property
    def by_hand(self) -> str:
        number = self.story.by_hand
        return "" if number is None else names.sweep_run_name(SWEEP, number)

    def is_held_by_hand(self) -> bool:
        run = self.model.objects.get(("rolloutruns", "ns", self.by_hand), {})
        labels = run.get("metadata", {}).get("labels", {})
        return bool(run.get("spec", {}).get("suspend")) and (
            names.LABEL_SWEEP_SUSPENDED not in labels
        )

    def changed(self, change: Change) -> None:
        for session in self.sessions:
            session.news(change)
        if change.place == PLACE and self.holds("Suspended") and (left := self.pods()):
            self.fail(f"Suspended is said, and there are pods: {left}")

    # -- what is so ---------------------------------------------------------------------------------------

    def status(self) -> Body:
        return self.model.objects.get(PLACE, {}).get("status", {})

    def holds(self, kind: str) -> bool:
        found = self.status().get("conditions", ())
        return any(one["type"] == kind and one["status"] == "True" for one in found)

    def pods(self) -> list[str]:
        return [place[2] for place, pod in self.model.of_kind("pods", "ns") if "x-template" in pod]

    def runs(self) -> dict[str, Body]:
        return {place[2]: live for place, live in self.model.of_kind("rolloutruns")}

    def at_goal(self) -> bool:
        """All runs have come to their goal or lost, those that go on stand ready, and all is written down."""
        status, runs = self.status(), self.runs()
        entries = {one["name"]: one for one in status.get("runs", ())}
        if len(runs) < self.story.num_runs or len(entries) < self.story.num_runs:
            return False
        lost = {name for name, one in entries.items() if one.get("outcome") == "Stopped"}
        going = [live for name, live in runs.items() if name not in lost]
        reported = [live.get("status", {}).get("progress", {}).get("step") for live in going]
        generation = self.model.objects[PLACE]["metadata"]["generation"]
        return (
            lost == self.story.losers()
            and reported == [GOAL] * len(going)
            and all(self._works(live) for live in going)
            and status.get("observedGeneration") == generation
        )

    def _works(self, run: Body) -> bool:
        name = run["metadata"]["name"]
        if name == self.by_hand and run["spec"].get("suspend"):
            return not any(pod.startswith(name) for pod in self.pods())
        found = run.get("status", {}).get("conditions", ())
        return any((c["type"], c["status"]) == ("Ready", "True") for c in found)

    # -- what is done ---------------------------------------------------------------------------------------

    def change(self, **spec: Any) -> None:
        self.say(f"ACT {spec}")
        self.model.merge(PERSON, PLACE, {"spec": spec})

    def hold_by_hand(self, *, suspended: bool) -> None:
        self.say(f"ACT {self.by_hand} suspended by hand: {suspended}")
        place = ("rolloutruns", "ns", self.by_hand)
        self.model.merge(PERSON, place, {"spec": {"suspend": suspended}})

    def open_operator(self) -> None:
        self.life.num_lives += 1
        self.say(f"operator {self.life.num_lives} begins")
        self.process = Process(f"operator-{self.life.num_lives}")
        self.process.spawn(self._operate(self.process))

    async def _operate(self, process: Process) -> None:
        clocks = Clocks(now=self.now, monotonic=self.loop.time, noise=self.draw.random)
        session = ModelSession(
            model=self.model,
            chaos=self.chaos,
            draw=self.draw,
            process=process,
            say=self.say,
            outlives=lambda work: self.tasks.append(self.loop.create_task(work, context=_NOBODY)),
        )
        self.sessions = [session]
        leader = build_leader(session, "a", clocks, elects=False)
        await run_whole_manager(build_manager(session, Answers(self.cluster), clocks, leader))
        self.fail("a part of the operator has ended")

    async def until(self, holds: Any, what: str) -> None:
        """Operators that die are begun again meanwhile."""
        while not holds():
            if self.loop.time() > OVER_SECONDS:
                self.fail(f"never: {what}; {self.status().get('conditions')}")
                raise TimeoutError(what)
            if not self.process.alive:
                if self.life.num_lives >= LIVES_MAX:
                    self.chaos.left = 0
                await asyncio.sleep(self.draw.uniform(0.1, 20.0))
                self.open_operator()
            await asyncio.sleep(POLL_SECONDS)

    async def play(self) -> None:
        for place, live in build_surroundings():
            if place[0] not in {"pods", "services", "configmaps", "statefulsets"}:
                self.model.create(PERSON, place, live)
        head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutSweep"}
        meta = {"name": SWEEP, "namespace": "ns"}
        self.model.create(PERSON, PLACE, {**head, "metadata": meta, "spec": self.story.spec()})
        self.tasks.append(self.loop.create_task(self.cluster.run()))
        self.open_operator()
        try:
            await self._acts()
        except TimeoutError:
            return
        self.life.end = self.describe_end()
        await self._look_once_more()

    async def _acts(self) -> None:
        await asyncio.sleep(self.draw_story.uniform(0.0, 30.0))
        for _ in range(self.story.suspensions):
            self.change(suspend=True)
            await self.until(lambda: self.holds("Suspended"), "the suspension")
            self.change(suspend=False)
            await self.until(self.at_goal, "every run at its goal")
        if self.by_hand:
            self.hold_by_hand(suspended=True)
            await self.until(self.at_goal, "the run that a person suspends")
            self.change(suspend=True)
            await self.until(lambda: self.holds("Suspended"), "the last suspension")
            self.change(suspend=False)
            await self.until(self.at_goal, "the others at their goal")
            self.hold_by_hand(suspended=False)
            await self.until(self.at_goal, "the run that a person resumes")
        self.cluster.may_end = True
        await self.until(lambda: self.holds("Finished"), "the end")
        await self.until(lambda: not self.pods(), "the end of every pod")

    @property
    def draw_story(self) -> random.Random:
        return random.Random(f"acts {self.story.seed}")

    def describe_end(self) -> dict[str, Any]:
        status = self.status()
        return {
            "outcomes": {one["name"]: one.get("outcome") for one in status["runs"]},
            "conditions": {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]},
            "best": status.get("best", {}).get("name"),
            "suspended": sorted(n for n, one in self.runs().items() if one["spec"].get("suspend")),
            "labels": sorted(
                name
                for name, one in self.runs().items()
                if names.LABEL_SWEEP_SUSPENDED in one["metadata"].get("labels", {})
            ),
        }

    async def _look_once_more(self) -> None:
        """A new operator, that remembers nothing, changes nothing of the sweep and its runs."""
        self.chaos.left, self.chaos.at_call = 0, None
        await self.until(lambda: self.process.alive, "an operator")
        await asyncio.sleep(REST_SECONDS)
        self.process.kill()
        before = self._specs()
        self.open_operator()
        await asyncio.sleep(REST_SECONDS)
        if self._specs() != before:
            pairs = zip(before, self._specs(), strict=True)
            self.fail(f"a new operator changes after the end: {[p for p in pairs if p[0] != p[1]]}")

    def _specs(self) -> list[Any]:
        return [
            (place, live["spec"], live.get("status", {}).get("conditions"))
            for plural in ("rolloutsweeps", "rolloutruns")
            for place, live in self.model.of_kind(plural)
        ]


@dataclass(frozen=True, slots=True)
class Answers:
    """Coordinators by their names: one that runs stops when it is told."""

    cluster: ModelCluster

    def post(self, url: str, json: Body, **_: Any) -> Exchange:
        return Exchange(lambda: self._answer(url, url.rpartition("/")[2]))

    async def _answer(self, url: str, call: str) -> Response:
        await asyncio.sleep(0.01)
        run = next((n for n in self._runs() if f"//{n}-coordinator" in url), "")
        pod = self.cluster.model.objects.get(("pods", "ns", f"{run}-coordinator-0"))
        if pod is None or not is_ready(pod):
            raise aiohttp.ClientConnectionError("nobody is there")
        if call == "stop":
            self.cluster.stopped.add(pod["metadata"]["uid"])
        return Response(200, {})

    def _runs(self) -> list[str]:
        return [place[2] for place, _ in self.cluster.model.of_kind("rolloutruns")]


async def run_whole_manager(manager: Manager) -> None:
    """An operator's life, with every kind of ours."""
    sink = OwnKinds(manager.store)
    readers = [
        Informer(client=manager.client, resource=one, sink=sink, clocks=manager.clocks)
        for one in OWN_KINDS
    ]
    tasks = [asyncio.create_task(one.run()) for one in readers]
    for reader in readers:
        await reader.synced.wait()
    await manager.start()
    await manager.ending.wait()
    del tasks


def play(seed: int, chaos: Chaos, draw: random.Random) -> SweepLife:
    """One life of one story."""
    life = SweepLife(story=build_sweep_story(seed))

    async def work() -> None:
        ear.theatre = theatre = SweepTheatre(chaos, draw, life)  # type: ignore[assignment]
        try:
            await theatre.play()
        finally:
            ear.theatre = None

    with heard() as ear, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
        run_virtual(work, draw)
    life.met, life.num_calls = chaos.met, chaos.num_calls
    return life


def undisturbed(seed: int) -> SweepLife:
    draw = random.Random(f"sweep life {seed}")
    return play(seed, Chaos(draw=draw), draw)


def simulate(seed: int) -> SweepLife:
    """A story with drawn faults; its end is that of the same story without."""
    draw = random.Random(f"sweep faults {seed}")
    chaos = Chaos(draw=draw, rate=draw.choice([0.02, 0.05]), left=draw.choice([4, 10]))
    life, clean = play(seed, chaos, draw), undisturbed(seed)
    life.broken = clean.broken + life.broken
    if not life.broken and life.end != clean.end:
        life.broken.append(f"the end is another one: {life.end}, and undisturbed {clean.end}")
    return life


def main() -> None:
    first, _, last = sys.argv[1].partition("-")
    for seed in range(int(first), int(last or first) + 1):
        life = simulate(seed)
        print(life.story, dict(life.met), life.num_lives, life.end)
        if life.broken or not last:
            print("\n".join(life.log), life.explain(), sep="\n")


if __name__ == "__main__":
    main()
