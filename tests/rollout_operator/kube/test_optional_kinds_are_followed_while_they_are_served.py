"""KEDA and the Gateway API may be installed and taken away while the operator runs: endpoints that want them are looked at each time."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from rollout_api import names
from rollout_operator.controller.queue import Key, KeyQueue
from rollout_operator.endpoint.optional import OptionalKinds
from rollout_operator.errors import NotFound, Unavailable
from rollout_operator.kube import following
from rollout_operator.kube.informer import Informer
from rollout_operator.kube.resources import HTTP_ROUTES, SCALED_OBJECTS
from rollout_operator.run.index.store import RunStore

TURNS_MAX = 10_000
KEY = Key(namespace="ns", name="chat", kind="RolloutEndpoint")
META = {"namespace": "ns", "resourceVersion": "5"}
SCALED = {"scaling": {"maxReplicas": 2, "keda": {"serverAddress": "http://p"}}}
OWNER = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutEndpoint",
    "name": "chat",
    "uid": "uid-1",
    "controller": True,
}
CHILD = {
    "metadata": {
        **META,
        "name": "chat-server",
        "uid": "uid-2",
        "labels": names.server_labels("chat", "uid-1"),
        "ownerReferences": [OWNER],
    },
    "spec": {},
}


class Cluster:
    """An API server that serves the kind, or not; ``broken``: it does not answer."""

    def __init__(self):
        self.served, self.broken, self.asked = False, False, 0

    async def read(self, path):
        await asyncio.sleep(0)
        self.asked += 1
        if self.broken:
            raise Unavailable(path, 503, "away")
        if not self.served:
            raise NotFound(path, 404, "none")
        return {"resources": [{"name": SCALED_OBJECTS.plural}, {"name": HTTP_ROUTES.plural}]}

    async def list(self, resource, namespace, **parameters):
        meta = {**CHILD["metadata"], "uid": f"{resource.kind}-{self.asked}"}
        return {"items": [{**CHILD, "metadata": meta}], "metadata": {"resourceVersion": "9"}}

    async def watch(self, *arguments, **parameters):
        await asyncio.Event().wait()
        yield


def build(cluster, spec):
    store, queue = RunStore(), KeyQueue()
    meta = {**META, "name": "chat", "uid": "uid-1", "generation": 1}
    store.put_object("RolloutEndpoint", {"metadata": meta, "spec": spec})
    kinds = OptionalKinds(
        client=cluster,
        store=store,
        queue=queue,
        build_readers=lambda resource: [Informer(client=cluster, resource=resource, sink=store)],
    )
    return kinds, store, queue


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(following, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(following, "STILL_SECONDS", 0.0)


@asynccontextmanager
async def followed(kinds):
    tasks = [asyncio.ensure_future(one.run()) for one in kinds.followers]
    yield
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(met):
    for _ in range(TURNS_MAX):
        if met():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come")


async def test_a_kind_that_comes_is_known_with_its_objects_and_one_that_goes_takes_them_along():
    cluster = Cluster()
    kinds, store, queue = build(cluster, SCALED)
    async with followed(kinds):
        await until(lambda: not any(one.missing() for one in kinds.followers))
        assert kinds.served() == set() and len(queue) == 0
        for _ in range(2):
            cluster.served = True
            await until(lambda: "ScaledObject" in kinds.served() and len(queue) == 1)
            assert (SCALED_OBJECTS.kind, "chat-server") in store.children("ns", "uid-1")
            assert await queue.get() == KEY
            queue.done(KEY)
            cluster.served = False
            await until(lambda: not kinds.served() and len(queue) == 1)
            assert not store.children("ns", "uid-1")
            assert await queue.get() == KEY
            queue.done(KEY)


async def test_a_kind_that_no_endpoint_wants_is_asked_for_once():
    cluster = Cluster()
    kinds, _, _ = build(cluster, {})
    async with followed(kinds):
        await until(lambda: cluster.asked == len(kinds.followers))
        for _ in range(100):
            await asyncio.sleep(0)
        assert cluster.asked == len(kinds.followers)


async def test_an_api_server_that_does_not_answer_takes_nothing_away():
    cluster = Cluster()
    cluster.served = True
    kinds, store, _ = build(cluster, SCALED)
    async with followed(kinds):
        await until(lambda: len(kinds.served()) == len(kinds.followers))
        cluster.broken, before = True, cluster.asked
        await until(lambda: cluster.asked > before + len(kinds.followers))
        assert len(kinds.served()) == len(kinds.followers)
        assert store.children("ns", "uid-1")
