"""Keys go to the controller of their kind: runtimes are valid or say why not."""

import asyncio

import pytest

from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.controller.worker import Workers
from rollout_operator.kube.resources import OWN_KINDS
from rollout_operator.other_kinds import StatusController
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.plan.preconditions.checks import find_runtime_fault

BROKEN = {"acceleratorClasses": "all of them"}


class Cluster:
    def __init__(self, kind, spec):
        self.store, self.queue, self.told = RunStore(), KeyQueue(), []
        meta = {
            "name": "one",
            "namespace": "n",
            "uid": "u",
            "resourceVersion": "1",
            "generation": 3,
        }
        self.store.put_object(kind, {"metadata": meta, "spec": spec})
        self.key = Key(namespace="n", name="one", kind=kind)
        self.controller = StatusController(
            kind=kind,
            store=self.store,
            queue=self.queue,
            send=self.send,
            find_fault=find_runtime_fault,
        )

    async def send(self, stored, status):
        self.told.append(status)
        meta = {"name": "one", "namespace": "n", "uid": stored.uid, "resourceVersion": "2"}
        live = {"metadata": {**meta, "generation": 3}, "status": status}
        self.store.put_object(stored.key.kind, live, notify=False)


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        ("RolloutRuntime", {}, ("True", "Valid")),
        ("ClusterRolloutRuntime", {}, ("True", "Valid")),
        ("ClusterRolloutRuntime", BROKEN, ("False", "InvalidSpec")),
    ],
)
async def test_an_object_that_is_no_run_is_told_what_it_is_good_for(kind, spec, said):
    cluster = Cluster(kind, spec)
    await cluster.controller.reconcile(cluster.key)
    ready = next(c for c in cluster.told[0]["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"], ready["observedGeneration"]) == (*said, 3)


async def test_what_has_been_said_is_not_written_again():
    cluster = Cluster("RolloutRuntime", {})
    for _ in range(3):
        await cluster.controller.reconcile(cluster.key)
    assert len(cluster.told) == 1


class Noting:
    """A controller that notes its keys, and wants to see one again."""

    def __init__(self, kind, again=None):
        self.kind, self.again, self.seen = kind, again, asyncio.Queue()

    async def reconcile(self, key):
        await self.seen.put(key)
        again, self.again = self.again, None
        return again


async def test_keys_go_to_the_controller_of_their_kind_and_come_back_when_it_says():
    controllers = {one.kind: Noting(one.kind) for one in OWN_KINDS}
    controllers["RolloutRuntime"].again = 0.0
    queue, leading = KeyQueue(), asyncio.Event()
    leading.set()
    workers = Workers(controllers=controllers, queue=queue, leading=leading, count=lambda *_: None)
    task = asyncio.create_task(workers.run())
    async with asyncio.timeout(60):
        for kind, one in controllers.items():
            key = Key(namespace="n", name="one", kind=kind)
            num_looks = 1 if one.again is None else 2
            queue.put(key)
            assert [await one.seen.get() for _ in range(num_looks)] == [key] * num_looks
    task.cancel()
