"""Runs that start at once share one question about the cluster's classes."""

import asyncio
from typing import cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from worlds import PLATFORM, SPEC

from rollout_operator.controller.queue import Key
from rollout_operator.kube.client import KubeClient
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.observe import Observer
from rollout_operator.run.queue.asking import Asker
from rollout_operator.signing import Keyring

RUNS = [Key(namespace="n", name=f"run-{index}", kind="RolloutRun") for index in range(8)]
DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}


class Classes:
    """An API server that knows one StorageClass, and is slow to say so."""

    def __init__(self):
        self.num_asked = 0

    async def answer(self, _):
        self.num_asked += 1
        await asyncio.sleep(0.05)
        one = {"metadata": {"name": "standard", "annotations": DEFAULT}, "provisioner": "x"}
        return web.json_response({"metadata": {}, "items": [one]})


def build_store():
    store = RunStore()
    runtime = {"name": "default", "uid": "runtime", "resourceVersion": "1"}
    spec = {"allowedNamespaces": {"from": "All"}}
    store.put_object("ClusterRolloutRuntime", {"metadata": runtime, "spec": spec})
    for key in RUNS:
        meta = {"name": key.name, "namespace": "n", "uid": key.name, "resourceVersion": "2"}
        store.put_object("RolloutRun", {"metadata": meta, "spec": SPEC})
    return store


@pytest.mark.parametrize(("num_running", "seconds"), [(1, 10.0), (200, 10.0), (1000, 50.0)])
def test_all_running_runs_together_write_their_progress_twenty_times_a_second(num_running, seconds):
    store = RunStore()
    over = {"conditions": [{"type": "Finished", "status": "True", "reason": "Succeeded"}]}
    for index in range(num_running + 500):
        meta = {"name": f"r-{index}", "namespace": "n", "uid": str(index), "resourceVersion": "1"}
        status = {} if index < num_running else over
        store.put_object("RolloutRun", {"metadata": meta, "spec": {}, "status": status})
    assert lonely_observer(store).progress_seconds() == seconds


def test_words_of_a_coordinator_do_not_make_a_run_one_that_has_ended():
    store = RunStore()
    words = {"outcome": {"kind": "Stopped", "reason": "Suspended"}, "conditions": []}
    again = {"conditions": [{"type": "Suspended", "status": "False", "reason": "Finished"}]}
    for index in range(400):
        meta = {"name": f"r-{index}", "namespace": "n", "uid": str(index), "resourceVersion": "1"}
        status = {**again, "progress": words}
        store.put_object("RolloutRun", {"metadata": meta, "spec": {}, "status": status})
    assert lonely_observer(store).progress_seconds() == 20.0


def lonely_observer(store):
    nobody = cast("KubeClient", None)
    return Observer(
        client=nobody,
        store=store,
        platform=lambda: PLATFORM,
        asker=Asker(client=nobody, served=lambda: False),
        keyring=Keyring,
    )


async def test_runs_that_start_at_once_ask_once():
    classes, store = Classes(), build_store()
    app = web.Application()
    app.router.add_get("/apis/storage.k8s.io/v1/storageclasses", classes.answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        client = KubeClient(session, str(server.make_url("")).rstrip("/"))
        observer = Observer(
            client=client,
            store=store,
            platform=lambda: PLATFORM,
            asker=Asker(client=client, served=lambda: False),
            keyring=Keyring,
        )

        async def look(key):
            stored = store.find(key)
            return await observer.check(observer.look(stored), stored)

        seen = await asyncio.gather(*(look(key) for key in RUNS))
    assert [one.gate for one in seen] == [None] * len(RUNS)
    assert classes.num_asked == 1
