"""One life of a run under one operator after another, or under two replicas, in virtual time: the real manager, client, cache and plan, and a model of the API server.

``python simulate_operator.py SEED`` tells the same story again, line by line; ``0-199`` plays many.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

if __name__ == "__main__":
    import conftest  # noqa: F401 - the paths

import aiohttp
from kept_promises import Promises, differences, end_of
from model_cluster import ModelCluster, is_ready
from model_objects import Body, Change, ModelObjects, Place
from model_requests import FAULTS, FROZEN, LATE, Chaos, Exchange, ModelSession, Response
from replicas import DISTURBANCES, RATES, SPLITS, SPLITTING, Disturber, Fencing, Replica
from run_stories import (
    OUTCOMES,
    PLACE,
    RUN,
    SHIFTED_FROM,
    UID,
    Act,
    Stage,
    Story,
    build_story,
    make_run,
)
from virtual_time import Process, find_process, run_virtual

from rollout_api import names
from rollout_operator.controller.clocks import Clocks
from rollout_operator.controller.queue import KeyQueue
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.config import Connection
from rollout_operator.kube.informer import Informer
from rollout_operator.kube.leader import Leader
from rollout_operator.kube.opened import OpenedWatches
from rollout_operator.kube.resources import OWN_KINDS, SWEEPS, Resource
from rollout_operator.manager import Manager
from rollout_operator.metrics import build_metrics
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.plan.preconditions.storage import DEFAULT_CLASS
from rollout_operator.run.record_keys import build_secret
from rollout_operator.settings import Settings
from rollout_operator.signing import KEY_BYTES, SECRET_NAME

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
OVER_SECONDS = 7200.0
"""Longest life, in virtual time: pauses after faults grow to two minutes."""
REST_SECONDS = 40.0
PAIRS_REST_SECONDS = 120.0
"""A leader that is frozen or hears nothing for a while may be all there is."""
POLL_SECONDS = 0.5
LIVES_MAX = 40
SYSTEM = "system"
TOLD_KINDS = [one for one in OWN_KINDS if one is not SWEEPS]
"""No story has a sweep (tests/rollout_operator/sweep has): its watch is one request more, after which all others come in another order."""
SETTINGS = Settings(
    health_port=0,
    operator_namespace=SYSTEM,
    account="rollout-operator",
    identity="a",
    concurrency=4,
)


@dataclass(slots=True, kw_only=True)
class Life:
    """What came of a story. ``log`` is what happened, with times."""

    story: Story
    broken: list[str] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)
    num_lives: int = 0
    num_writes: int = 0
    num_calls: int = 0
    writers: set[str] = field(default_factory=set)
    num_overlaps: int = 0
    log: list[str] = field(default_factory=list)

    def explain(self) -> str:
        command = f"python tests/rollout_operator/simulation/simulate_operator.py {self.story.seed}"
        return "\n".join([self.story.describe(), *self.log[-80:], *self.broken, command])


@dataclass(frozen=True, slots=True)
class OwnKinds:
    """Hands objects of our kinds to the store, as kopf's lists and events do."""

    store: RunStore

    def put(self, resource: Resource, live: Body) -> None:
        self.store.put_object(resource.kind, live)

    def drop(self, resource: Resource, live: Body) -> None:
        self.store.drop_object(resource.kind, live)

    def keep_only(
        self, resource: Resource, namespace: str | None, uids: set[str], version: float
    ) -> None:
        self.store.keep_objects(resource.kind, namespace, uids, int(version))


class Theatre:
    """A cluster, and operators that come and go."""

    def __init__(self, story: Story, chaos: Chaos, draw: random.Random, life: Life) -> None:
        self.story, self.chaos, self.draw, self.life = story, chaos, draw, life
        self.loop = asyncio.get_running_loop()
        self.promises = Promises(say=self.say)
        self.model = ModelObjects(now=self.stamp, judge=self.promises.judge, changed=self.changed)
        self.cluster = ModelCluster(
            model=self.model, draw=draw, now=self.stamp, outcome=OUTCOMES.get(story.end, {})
        )
        self.stage = Stage(model=self.model, cluster=self.cluster, loose=story.loose)
        self.acts: list[Act] = []
        self.tasks: list[asyncio.Task] = []
        self.fencing = Fencing(fail=self.promises.fail)
        self.disturb = Disturber(draw, self.loop.call_later)
        self.has_honest_clocks = chaos.honest
        self.pace = random.Random(f"pace {story.seed}") if story.mixed else None
        self.replicas = [
            Replica(place=one, process=_build_dead()) for one in "ab"[: story.num_replicas]
        ]

    # -- time --------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.loop.time())

    def stamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def say(self, words: str) -> None:
        self.life.log.append(f"{self.loop.time():9.3f} {words}")

    def changed(self, change: Change) -> None:
        self.promises.changed(change, self.model)
        if not self.story.loose:
            self.fencing.changed(change, self.model.writer)
        for session in [one for replica in self.replicas for one in replica.sessions]:
            session.news(change)
        if change.place != PLACE and self.acts and self.acts[0].at_once:
            self._act(self.acts)

    # -- operators -----------------------------------------------------------------------------------------

    def open_operator(self, replica: Replica) -> None:
        self.life.num_lives += 1
        rate = 1.0 if self.has_honest_clocks else self.draw.choice(RATES)
        told = f", its clock of the Lease at {rate}" if self.is_pair else ""
        self.say(f"operator {self.life.num_lives} begins{told}")
        process = Process(f"{replica.place}{self.life.num_lives}")
        replica.begin(process, rate)
        process.spawn(self._operate(replica, process))

    @property
    def is_pair(self) -> bool:
        return len(self.replicas) > 1

    async def _operate(self, replica: Replica, process: Process) -> None:
        rate = replica.rate
        clocks = Clocks(now=self.now, monotonic=self.loop.time, noise=self.draw.random)
        of_lease = replace(clocks, monotonic=lambda: self.loop.time() * rate)
        session = self._build_session(replica)
        apart = self._build_session(replica) if self.is_pair else session
        leader = build_leader(apart, replica.identity, of_lease, elects=self.is_pair)
        if self.is_pair:
            session.may_send = leader.require
            session.sends = lambda what: self._sends(replica, what)
        manager = build_manager(session, Network(self.cluster, self.say), clocks, leader)
        replica.sessions, replica.manager = [session, apart][: len(self.replicas)], manager
        await run_manager(manager, process, OWN_KINDS if self.story.shifted else TOLD_KINDS)
        if not replica.is_leaving:
            self.promises.fail("a part of the operator has ended")
        await manager.stop()
        self.say(f"{replica.identity} has ended")
        process.kill()

    def _build_session(self, replica: Replica) -> ModelSession:
        return ModelSession(
            model=self.model,
            chaos=self.chaos,
            draw=self.draw,
            process=replica.process,
            say=self.say,
            writer=replica.identity,
            pace=self.pace,
            outlives=lambda work: self.tasks.append(self.loop.create_task(work, context=_NOBODY)),
        )

    def _sends(self, replica: Replica, what: str) -> None:
        self.fencing.sends(replica.identity, what, self.model, honest=self.has_honest_clocks)

    # -- the life --------------------------------------------------------------------------------------------

    async def play(self) -> None:
        self.prepare()
        self.tasks.append(self.loop.create_task(self.cluster.run()))
        self.acts = acts = self.story.plan()
        quiet, seen = 0.0, -1
        rest = PAIRS_REST_SECONDS if self.is_pair else REST_SECONDS
        while self.loop.time() < OVER_SECONDS:
            await self._keep_operators()
            self._disturb_one()
            self._act(acts)
            version = self._version()
            quiet = quiet + POLL_SECONDS if version == seen else 0.0
            seen = version
            if not acts and self._is_over() and quiet >= rest:
                await self._look_once_more()
                return
            await asyncio.sleep(POLL_SECONDS)
        left = [act.name for act in acts]
        words = f"still to happen: {left}; {self._conditions()}"
        self.promises.fail(f"no end in {OVER_SECONDS} s; {words}")

    def _act(self, acts: list[Act]) -> None:
        if acts and acts[0].due(self.stage):
            act = acts.pop(0)
            self.say(f"ACT {act.name}")
            act.do(self.stage)
        ends = self.story.end in OUTCOMES
        self.cluster.may_end = not acts and ends and self.stage.may_end()

    def prepare(self) -> None:
        make_run(self.model, self.story.spec)
        for place, live in build_surroundings(self.story.bucket):
            self.model.create("kubectl", place, live)

    async def _keep_operators(self) -> None:
        for replica in self.replicas:
            if replica.process.alive:
                continue
            if self.life.num_lives >= LIVES_MAX:
                self.chaos.left = 0
            if await self._may_begin(replica):
                self.open_operator(replica)

    async def _may_begin(self, replica: Replica) -> bool:
        """Who is dead comes back after a while, in which the other replica, where there is one, goes on."""
        if self.life.num_lives < len(self.replicas):
            return True
        if not self.is_pair:
            self.say("the operator is dead")
            await asyncio.sleep(self.draw.uniform(0.1, 20.0))
            return True
        if not replica.back_at:
            self.say(f"{replica.identity} is dead")
            replica.back_at = self.loop.time() + self.draw.uniform(0.1, 20.0)
        if self.loop.time() < replica.back_at:
            return False
        replica.back_at = 0.0
        return True

    def _disturb_one(self) -> None:
        """Most often the one that leads."""
        if not (kind := self.chaos.for_replica()):
            return
        leads = [one for one in self.replicas if one.leads()]
        chosen = self.draw.choice(leads if leads and self.draw.random() < 0.8 else self.replicas)
        if chosen.process.alive:
            self.say(f"{kind}: {chosen.identity}")
            self.disturb(kind, chosen)

    def _version(self) -> int:
        """What changes with every write but those of the Lease."""
        found = self.model.objects.items()
        versions = [(p, o["metadata"]["resourceVersion"]) for p, o in found if p[0] != "leases"]
        return hash(tuple(versions))

    def _is_over(self) -> bool:
        if PLACE not in self.model.objects:
            return not any("x-template" in one for one in self.model.objects.values())
        return self.stage.holds("Finished") and not self.stage.pods()

    async def _look_once_more(self) -> None:
        """A new operator, that remembers nothing, finds nothing to be done."""
        self.life.end = end_of(self.model)
        self.chaos.rate, self.chaos.at_call, self.has_honest_clocks = 0.0, None, True
        for replica in self.replicas:
            replica.process.kill()
        before, self.promises.writes = self.promises.num_writes, []
        self.open_operator(self.replicas[0])
        await asyncio.sleep(60.0)
        if self.promises.num_writes != before:
            self.promises.fail(f"a new operator writes after the end: {self.promises.writes}")

    def _conditions(self) -> Any:
        found = self.stage.run.get("status", {}).get("conditions", ())
        return {one["type"]: (one["status"], one["reason"], one["message"][:200]) for one in found}


@dataclass(frozen=True, slots=True)
class Network:
    """Coordinators by their names: one that runs takes what it is told."""

    cluster: ModelCluster
    say: Callable[[str], None]

    def post(self, url: str, json: Body, **_: Any) -> Exchange:
        return Exchange(lambda: self._answer(url.rpartition("/")[2], json))

    async def _answer(self, call: str, body: Body) -> Response:
        await asyncio.sleep(0.01)
        pod = self.cluster.model.objects.get(("pods", "ns", f"{RUN}-coordinator-0"))
        if pod is None or not is_ready(pod):
            raise aiohttp.ClientConnectionError("nobody is there")
        self.say(f"  coordinator: {call}")
        if call == "stop":
            self.cluster.stopped.add(pod["metadata"]["uid"])
        if call == "snapshot":
            return Response(200, self.cluster.save(pod["metadata"]["uid"], body))
        return Response(200, {})


_NOBODY = Context()


def _build_dead() -> Process:
    process = Process("nobody")
    process.kill()
    return process


async def run_manager(
    manager: Manager, process: Process, kinds: Sequence[Resource] = TOLD_KINDS
) -> None:
    """An operator's life, until a part of it ends."""
    sink = OwnKinds(manager.store)
    readers = [
        Informer(client=manager.client, resource=one, sink=sink, clocks=manager.clocks)
        for one in kinds
    ]
    for reader in readers:
        process.spawn(reader.run())
    for reader in readers:
        await reader.synced.wait()
    await manager.start()
    await manager.ending.wait()


SERVER = "https://cluster"


def build_leader(session: ModelSession, identity: str, clocks: Clocks, *, elects: bool) -> Leader:
    return Leader(
        client=KubeClient(session, SERVER),
        namespace=SYSTEM,
        identity=identity,
        enabled=elects,
        clocks=clocks,
    )


def build_manager(session: ModelSession, outer: Any, clocks: Clocks, leader: Leader) -> Manager:
    metrics = build_metrics()
    queue = KeyQueue(clock=clocks.monotonic, noise=clocks.noise)
    return Manager(
        settings=replace(SETTINGS, identity=leader.identity),
        connection=Connection(server=SERVER, namespace=SYSTEM),
        session=session,
        outer=outer,
        client=KubeClient(session, SERVER, may_write=leader.require, count=metrics.count_request),
        store=RunStore(queue.put),
        queue=queue,
        leader=leader,
        opened=OpenedWatches([], clock=clocks.monotonic),
        metrics=metrics,
        clocks=clocks,
    )


def build_surroundings(bucket: str = "") -> list[tuple[Place, Body]]:
    """What is there before: a runtime, a class of storage, the key of records, and objects that only look like the run's."""
    runtime = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "ClusterRolloutRuntime",
        "metadata": {"name": "default"},
        "spec": {"allowedNamespaces": {"from": "All"}},
    }
    if bucket:
        runtime["spec"] |= {"storage": {"uri": bucket}}
    storage = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "provisioner": "local",
        "metadata": {"name": "default", "annotations": {DEFAULT_CLASS: "true"}},
    }
    return [
        (("clusterrolloutruntimes", "", "default"), runtime),
        (("storageclasses", "", "default"), storage),
        (("secrets", SYSTEM, SECRET_NAME), build_secret(SYSTEM, b"k" * KEY_BYTES)),
        *build_strangers(),
    ]


def build_strangers() -> list[tuple[Place, Body]]:
    """Objects of others with the run's labels, of a living owner and of one that is gone."""
    labels = {
        names.LABEL_RUN: RUN,
        names.LABEL_RUN_UID: UID,
        names.LABEL_MANAGED_BY: names.MANAGER_CHILDREN,
        names.LABEL_ROLE: "actor",
        names.LABEL_ATTEMPT: "1",
    }
    anchor = {"apiVersion": "v1", "kind": "ConfigMap", "name": "anchor", "uid": "anchor"}
    gone = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun", "name": RUN}
    gone |= {"uid": "uid-gone", "controller": True}

    def named(kind: str, name: str, *owners: Body) -> Body:
        meta = {"name": name, "namespace": "ns", "labels": labels, "ownerReferences": list(owners)}
        return {"apiVersion": "v1", "kind": kind, "metadata": meta, "data": {}, "spec": {}}

    first = {"metadata": {"name": "anchor", "namespace": "ns", "uid": "anchor"}}
    workload = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "another"}
    workload |= {"uid": "another-set"}
    controller = {**anchor, "controller": True}
    return [
        (("configmaps", "ns", "anchor"), {"apiVersion": "v1", "kind": "ConfigMap", **first}),
        (("configmaps", "ns", "run-of-nobody"), named("ConfigMap", "run-of-nobody", anchor)),
        (("services", "ns", "run-of-another"), named("Service", "run-of-another", anchor, gone)),
        (("pods", "ns", "run-actors-77"), named("Pod", "run-actors-77", controller)),
        (("pods", "ns", "another-0"), named("Pod", "another-0", {**workload, "controller": True})),
        (("statefulsets", "ns", "another"), ANOTHER_SET),
    ]


ANOTHER_SET: Body = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "another", "namespace": "ns", "uid": "another-set"},
    "spec": {"replicas": 1, "updateStrategy": {"type": "OnDelete"}, "template": {}},
}


class Ear(logging.Handler):
    """What the operator logs belongs to the story; a traceback is a broken promise."""

    def __init__(self) -> None:
        super().__init__()
        self.theatre: Theatre | None = None

    def emit(self, record: logging.LogRecord) -> None:
        process = find_process()
        if self.theatre is None or process is None or not process.alive:
            return
        self.theatre.say(f"  log: {record.getMessage()[:300]}")
        if record.exc_info and record.exc_info[1] is not None:
            words = logging.Formatter().formatException(record.exc_info)[-1500:]
            self.theatre.promises.fail(f"{record.getMessage()}\n{words}")


@contextmanager
def heard() -> Iterator[Ear]:
    ear, log = Ear(), logging.getLogger("rollout_operator")
    before = log.propagate, log.level
    log.addHandler(ear)
    log.propagate = False
    log.setLevel(logging.INFO)
    try:
        yield ear
    finally:
        log.removeHandler(ear)
        log.propagate = before[0]
        log.setLevel(before[1])


def play(seed: int, chaos: Chaos, draw: random.Random) -> Life:
    """One life of one story."""
    life = Life(story=build_story(seed))

    async def work() -> None:
        ear.theatre = theatre = Theatre(life.story, chaos, draw, life)
        try:
            await theatre.play()
        finally:
            ear.theatre = None
            life.broken, life.num_writes = theatre.promises.broken, theatre.promises.num_writes
            life.writers = theatre.fencing.writers
            life.num_overlaps = theatre.fencing.num_overlaps

    with heard() as ear, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
        run_virtual(work, draw)
    life.met, life.num_calls = chaos.met, chaos.num_calls
    return life


def undisturbed(seed: int) -> Life:
    draw = random.Random(f"life {seed % SHIFTED_FROM}")
    return play(seed, Chaos(draw=draw), draw)


def disturbed(seed: int) -> Life:
    draw = random.Random(f"faults {seed % SHIFTED_FROM}")
    chaos = Chaos(draw=draw, rate=draw.choice([0.02, 0.05, 0.15]), left=draw.choice([2, 8, 20]))
    if build_story(seed).num_replicas > 1:
        chaos.kinds, chaos.replica_kinds = (*FAULTS, LATE, FROZEN), tuple(DISTURBANCES)
        chaos.replica_left = draw.choice([2, 4, 8])
        if draw.random() < 0.5:
            chaos.honest, chaos.kinds, chaos.replica_kinds = False, SPLITTING, SPLITS
    return play(seed, chaos, draw)


def simulate(seed: int) -> Life:
    """A story with drawn faults; its end is that of the same story without."""
    return compare(disturbed(seed), undisturbed(seed))


def simulate_one_fault(clean: Life, kind: str, number: int) -> Life:
    """The story of a clean life again, with one fault at one of its calls."""
    draw = random.Random(f"life {clean.story.seed % SHIFTED_FROM}")
    chaos = Chaos(draw=draw, kinds=(kind,), watch_kinds=(), at_call=number)
    return compare(play(clean.story.seed, chaos, draw), clean)


def _settled(end: Body, story: Story) -> Body:
    """What of an end chance does not decide: a record that is deleted may be missed for as long as the run has left."""
    if story.loose:
        return end.get("conditions", {})
    if "delete the record" not in story.acts:
        return end
    children = {
        place: child
        for place, child in end.get("children", {}).items()
        if names.ANNOTATION_CHILDREN not in child["metadata"].get("annotations", {})
    }
    return end | {"children": children}


def compare(life: Life, clean: Life) -> Life:
    """With what was broken in either, or differs between them."""
    life.broken = clean.broken + life.broken
    ends = [_settled(one, life.story) for one in (life.end, clean.end)]
    if not life.broken and (found := differences(*ends)):
        life.broken.append(f"the end is another one: {found[:8]}")
    return life


def main() -> None:
    first, _, last = sys.argv[1].partition("-")
    for seed in range(int(first), int(last or first) + 1):
        life = simulate(seed)
        if life.broken or not last:
            print(*([life.explain()] if last else ["\n".join(life.log), life.explain()]), sep="\n")
        else:
            print(
                life.story.describe(),
                dict(life.met),
                life.num_lives,
                life.num_writes,
                life.num_calls,
                life.num_overlaps,
            )


if __name__ == "__main__":
    main()
