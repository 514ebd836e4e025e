"""A call that is refused for good stalls the run with the call's name; what already lives goes on."""

import asyncio
import json
from dataclasses import replace

import pytest
from worlds import SPEC, World

from rollout_api.conditions import Reason
from rollout_operator.cache.children import Node
from rollout_operator.controller.clocks import Clocks
from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.controller.worker import Workers
from rollout_operator.errors import Conflict, Forbidden, NotFound, Outdated, Unavailable
from rollout_operator.run.controller import (
    FAILURES_TOLD_MAX,
    TOLD_SECONDS_MIN,
    Reconciler,
)
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.plan import plan_run

REFUSED = Blocked(reason=Reason.FORBIDDEN, message="apply services: 403 no", retry_seconds=10.0)
KEY = Key(namespace="ns", name="run", kind="RolloutRun")


def conditions(world, **changed):
    plan = plan_run(replace(world.observe(), blocked=REFUSED, **changed), world.now)
    return {one["type"]: one for one in (plan.status or {}).get("conditions", ())}


def test_a_run_that_is_being_made_stalls():
    world = World()
    world.tick()
    found = conditions(world)
    assert (found["Stalled"]["reason"], found["Stalled"]["message"]) == (
        "Forbidden",
        "apply services: 403 no",
    )
    assert found["Ready"]["status"] == "False"


def test_a_suspension_that_is_refused_stalls_and_still_drains():
    world = World()
    world.settle()
    world.change(suspend=True)
    found = conditions(world)
    assert found["Stalled"]["reason"] == "Forbidden"
    assert found["Ready"]["reason"] == "Draining"
    assert "Reconciling" not in found


class Refusing:
    """Everything that a Reconciler uses, in which one call fails; keeps the statuses and the order of writes."""

    def __init__(self, error, *, when="act"):
        self.error, self.when, self.told, self.order = error, when, [], []
        self.removed = False
        self.unknown = set()
        self.unsaved = None
        self.sought = lambda _uid: None
        self.world = World()
        self.queue = KeyQueue()
        self.store = RunStore()
        meta = {"name": "run", "namespace": "ns", "uid": "uid-0001", "resourceVersion": "1"}
        self.store.put_object("RolloutRun", {"metadata": meta, "spec": SPEC})
        self.reconciler = Reconciler(
            client=self,
            store=self.store,
            queue=self.queue,
            observer=self,
            applier=self,
            keeper=self,
            coordinators=self,
            poster=self,
            record_keys=self,
            saver=self,
        )

    def look(self, _):
        return self.world.observe()

    async def check(self, observed, _):
        if self.when == "check":
            raise self.error
        return observed

    async def lower(self, *_):
        return None

    async def build_inputs(self, *_):
        return None

    async def ensure(self, *_):
        if self.error is not None:
            raise self.error
        return "record"

    async def remove(self, _):
        if self.error is not None:
            raise self.error
        self.removed = True

    async def act(self, *_):
        return True

    async def save(self, *_):
        return self.unsaved

    async def release_orphans(self, *_):
        return True

    async def post(self, _, __, note):
        self.order.append(f"event {note.reason.value}")

    async def apply(self, body, *_, **__):
        if unknown := self.unknown & body["status"].keys():
            raise Outdated("apply runs x", 500, f"upgrade: {unknown}")
        self.order.append("status")
        self.told.append(body["status"])
        return {**body, "metadata": {**body["metadata"], "namespace": "ns", "resourceVersion": "2"}}

    async def reconcile(self):
        await self.reconciler.reconcile(KEY)

    def stalled(self):
        found = [c for c in self.told[-1]["conditions"] if c["type"] == "Stalled"]
        return found[0] if found else None


@pytest.mark.parametrize("when", ["check", "act"])
async def test_a_missing_right_is_told_at_once(when):
    one = Refusing(Forbidden("get secrets x", 403, "cannot get"), when=when)
    await one.reconcile()
    assert one.stalled()["reason"] == "Forbidden"
    assert "get secrets x: 403 cannot get" in one.stalled()["message"]
    assert one.queue.failures(KEY) == 1


async def test_pods_of_a_node_that_is_gone_are_told_of_before_they_are_deleted():
    one = Refusing(Conflict("delete pods x", 409, "was changed"))
    one.world.watches_nodes, one.world.nodes = True, {"node-a": Node(name="node-a", version=1)}
    one.world.settle()
    one.world.nodes = {}
    one.reconciler.clocks = Clocks(now=lambda: one.world.now)
    with pytest.raises(Conflict):
        await one.reconcile()
    assert one.order == ["event PodForceDeleted"]


@pytest.mark.parametrize("kind", [Conflict, NotFound, Unavailable])
async def test_what_passes_by_itself_is_told_only_when_it_does_not(kind):
    one = Refusing(kind("apply services x", 503, "etcd has no leader"))
    for _ in range(FAILURES_TOLD_MAX):
        with pytest.raises(kind):
            await one.reconcile()
        one.queue.retry(KEY)
    assert one.told == []
    await one.reconcile()
    assert one.stalled()["reason"] == "ApiServerRefused"
    assert "etcd has no leader" in one.stalled()["message"]


async def test_children_that_may_not_be_removed_are_told_and_tried_again():
    one = Refusing(Forbidden("delete services x", 403, "cannot delete"))
    one.world = World(spec={**SPEC, "limits": {"ttlSecondsAfterFinished": 0}})
    one.world.settle()
    one.world.report(step=400, outcome={"kind": "Succeeded", "reason": "Done"})
    while not one.world.plan().remove_children:
        one.world.tick()
    await one.reconcile()
    said = {c["type"]: c for c in one.told[-1]["conditions"]}
    assert (said["CleanedUp"]["status"], said["CleanedUp"]["reason"]) == ("False", "Forbidden")
    assert "delete services x: 403 cannot delete" in said["CleanedUp"]["message"]
    assert (said["Ready"]["status"], said["Finished"]["reason"]) == ("True", "Succeeded")
    assert one.order == ["event Forbidden", "status"]
    assert one.queue.failures(KEY) == 1

    one.error, one.world.status = None, {**one.told[-1]}
    await one.reconcile()
    assert one.removed
    assert "CleanedUp" not in {c["type"] for c in one.told[-1]["conditions"]}
    assert one.queue.failures(KEY) == 0


async def test_snapshots_of_schedules_that_cannot_be_made_are_told_beside_all_else():
    one = Refusing(None)
    snapshots = {"everySteps": 20, "schedules": [{"name": "hundreds", "everySteps": 100}]}
    one.world = World(spec={**SPEC, "storage": {"uri": "s3://b/runs"}, "snapshots": snapshots})
    one.world.settle()
    one.world.anchor(100)
    one.reconciler.clocks = Clocks(now=lambda: one.world.now)
    gate = Blocked(reason=Reason.FORBIDDEN, message="cannot create", retry_seconds=30.0)
    one.unsaved = gate
    await one.reconcile()
    found = {c["type"]: c for c in one.told[-1]["conditions"]}
    assert found["SnapshotsScheduled"]["reason"] == "Forbidden"
    assert found["Ready"]["status"] == "True"
    assert one.told[-1]["schedules"] == [{"name": "hundreds", "lastStep": 0}]
    one.unsaved = None
    one.world.status = {**one.told[-1], "progress": one.world.status["progress"]}
    await one.reconcile()
    assert one.told[-1]["schedules"][0]["lastStep"] == 100


async def test_definitions_that_lack_a_field_are_named_once_and_the_rest_is_kept():
    one = Refusing(None)
    one.world.settle()
    one.reconciler.clocks = Clocks(now=lambda: one.world.now)
    one.world.status = {k: v for k, v in one.world.status.items() if k != "selector"}
    one.unknown = {"selector"}
    for _ in range(3):
        with pytest.raises(Outdated):
            await one.reconcile()
        one.world.status = {**one.told[-1]}
    assert len(one.told) == 1
    assert one.stalled()["reason"] == "CRDOutdated"
    assert one.stalled()["message"].startswith("upgrade: ")
    assert one.told[0]["startTime"] and one.told[0]["attempt"] == 1
    kinds = {c["type"]: c for c in one.told[0]["conditions"]}
    assert kinds["Ready"]["status"] == "False"
    assert kinds["LearnerReady"]["status"] == "True"
    assert one.order.count("event CRDOutdated") == 1

    one.unknown = set()
    await one.reconcile()
    assert one.told[-1]["selector"]
    assert one.stalled() is None


async def test_a_server_that_asks_for_patience_is_left_alone_for_that_long():
    waits = []
    one = Refusing(Unavailable("apply x", 429, "slow down", 60.0))
    one.queue.put_later = lambda _, seconds: waits.append(seconds)
    for _ in range(FAILURES_TOLD_MAX):
        one.queue.retry(KEY)
    waits.clear()
    await one.reconcile()
    assert waits == [60.0]
    assert TOLD_SECONDS_MIN < 60.0


async def test_events_come_before_the_status_that_makes_them_old_news():
    one = Refusing(None)
    await one.reconcile()
    assert one.order == ["event Starting", "status"]


async def test_nobody_works_while_another_replica_leads():
    one = Refusing(None)
    leading = asyncio.Event()
    workers = Workers(
        controllers={"RolloutRun": one.reconciler},
        queue=one.queue,
        leading=leading,
        count=lambda *_: None,
    )
    one.queue.put(KEY)
    task = asyncio.create_task(workers.run())
    for _ in range(100):
        await asyncio.sleep(0)
    assert one.order == []
    leading.set()
    async with asyncio.timeout(30):
        while "status" not in one.order:
            await asyncio.sleep(0.01)
    task.cancel()
    assert json.dumps(one.told[0])
