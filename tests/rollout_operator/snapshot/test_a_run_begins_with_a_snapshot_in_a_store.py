"""A run names a snapshot by its location: no RolloutSnapshot is needed, and no place of others is read."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from worlds import PLATFORM, SPEC

from rollout_api.v1alpha1.pods.allowed import Allowed
from rollout_api.v1alpha1.storage import SnapshotObject
from rollout_api.worker import RestoreOrder
from rollout_operator.controller.queue import Key
from rollout_operator.kube.client import KubeClient
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.observe import Observer
from rollout_operator.run.plan.preconditions.restoring import check_restore, source_at
from rollout_operator.run.plan.preconditions.upstreams import Readable
from rollout_operator.run.queue.asking import Asker
from rollout_operator.signing import Keyring

ID = "ab" * 32
RUN = Key(namespace="ns", name="second", kind="RolloutRun")
OWN, OTHER = "ed25519:" + "a" * 64, "ed25519:" + "b" * 64
CLASS = {
    "metadata": {
        "name": "standard",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": "x",
}
READABLE = Readable(
    namespace="ns", roots=("s3://b/runs",), lists=Allowed(storage=("s3://archive/good/",))
)


def named(place, snapshot=ID):
    return {
        "uri": f"{place}/snapshots/manifests/{snapshot}.json",
        "digest": f"blake3:{snapshot}",
    }


def store_of(given):
    """A run that begins with ``given``, on a runtime that lets it read an archive and trusts another installation."""
    store = RunStore()
    runtime = {
        "allowedNamespaces": {"from": "All"},
        "storage": {"uri": "s3://b/runs"},
        "allowed": {"storage": ["s3://archive/good/"]},
        "trustedSigners": [OWN, OTHER],
    }
    meta = {"name": "default", "uid": "runtime", "resourceVersion": "1"}
    store.put_object("ClusterRolloutRuntime", {"metadata": meta, "spec": runtime})
    meta = {"name": RUN.name, "namespace": "ns", "uid": "uid-2", "resourceVersion": "2"}
    spec = {**SPEC, "restoreFrom": {"object": given}}
    store.put_object("RolloutRun", {"metadata": meta, "spec": spec})
    return store


async def own_key():
    return (OWN,)


async def answer(request):
    classes = request.path.endswith("/storageclasses")
    return web.json_response({"metadata": {}, "items": [CLASS] if classes else []})


async def observe(given):
    """What stands before the run, and what its pods are told where nothing does."""
    app, store = web.Application(), store_of(given)
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        client = KubeClient(session, str(server.make_url("")).rstrip("/"))
        observer = Observer(
            client=client,
            store=store,
            platform=lambda: PLATFORM,
            asker=Asker(client=client, served=lambda: False),
            keyring=Keyring,
            trusted=own_key,
        )
        stored = store.find(RUN)
        observed = await observer.check(observer.look(stored), stored)
        if observed.gate is not None:
            return observed.gate, None
        return None, (await observer.build_inputs(observed, stored)).restore


@pytest.mark.parametrize("place", ["s3://b/runs/ns/uid-of-a-run-that-is-gone", "s3://archive/good"])
async def test_the_pods_are_told_what_it_is_and_whose_keys_are_believed(place):
    gate, told = await observe(named(place))
    assert gate is None
    assert told == RestoreOrder(
        snapshot=ID, place=place, trusted=(OWN, OWN, OTHER), foreign=(OTHER,)
    )


async def test_a_place_that_is_anothers_holds_the_run_back_by_name():
    gate, told = await observe(named("s3://b/runs/victim/uid-1"))
    assert told is None
    assert (gate.reason.value, gate.stalled) == ("NotAllowed", True)
    assert "restoreFrom.object" in gate.message
    assert "s3://b/runs/victim/uid-1" in gate.message
    assert "spec.allowed.storage" in gate.message


async def test_what_names_no_snapshot_holds_the_run_back_where_no_webhook_stands():
    gate, _ = await observe({**named("s3://b/runs/ns/u"), "digest": f"blake3:{'0' * 64}"})
    assert gate.reason.value == "InvalidSpec"
    assert "restoreFrom.object" in gate.message


@pytest.mark.parametrize(
    "place",
    [
        "s3://b/runs/victim/uid-1",
        "s3://b/runs/ns-too/uid-1",
        "s3://b/runs/ns",
        "s3://b/runs/ns/../victim/uid-1",
        "s3://b/runs/ns/%2e%2e/victim/uid-1",
        "s3://b/runs/ns//../victim",
        "s3://b/runs/$(namespace)/uid-1",
        "s3://B/runs/ns/uid-1",
        "s3://elsewhere/ns/uid-1",
        "s3://archive/good/../bad",
        "s3://archive/goodness",
        "s3://user:password@b/runs/ns/uid-1",
        "gs://b/runs/ns/uid-1",
        "file:///var/lib/rollout",
        "http://169.254.169.254/latest",
    ],
)
def test_no_place_is_read_that_is_not_the_namespaces_nor_named_by_the_runtime(place):
    gate = check_restore(source_at(SnapshotObject.model_validate(named(place)), READABLE))
    assert gate is not None
    assert gate.reason.value == "NotAllowed"


def test_a_long_place_is_shown_in_part():
    given = SnapshotObject.model_validate(named("s3://b/" + "x" * 1500))
    gate = check_restore(source_at(given, READABLE))
    assert len(gate.message) < 600
