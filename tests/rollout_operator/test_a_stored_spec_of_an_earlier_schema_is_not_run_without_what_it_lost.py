"""What the API server dropped of a stored spec is known from the record of the attempt before: the next one is refused, and says why."""

import json
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from worlds import PLATFORM, RING, SPEC, build_inputs

from rollout_api import names
from rollout_operator.controller.queue import Key
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import CONFIG_MAPS
from rollout_operator.run.attempt import render_record, sign_record
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.observe import Observer
from rollout_operator.run.queue.asking import Asker
from rollout_operator.signing import ORDER_FILE

SUSPENDED = {
    "type": "Suspended",
    "status": "True",
    "reason": "Suspended",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
SECRET = {"name": "HF_TOKEN", "secretKeyRef": {"name": "hf", "key": "token"}}
TODAY = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}]


def record_of_before():
    """What an operator of the earlier schema made of a run that had a variable from a Secret."""
    manifest = render_record(replace(build_inputs(), generation=1)).config_map
    order = json.loads(manifest["data"][ORDER_FILE])
    order["spec"]["secretEnv"] = [SECRET]
    manifest["data"][ORDER_FILE] = json.dumps(order)
    manifest["metadata"]["annotations"].pop(names.ANNOTATION_SIGNATURE, None)
    record = replace(render_record(replace(build_inputs(), generation=1)), config_map=manifest)
    signed = sign_record(record, RING).config_map
    meta = {**signed["metadata"], "uid": "record", "resourceVersion": "7"}
    return {**signed, "metadata": meta}


def run(spec, status):
    meta = {"name": "run", "namespace": "ns", "uid": "uid-0001", "resourceVersion": "2"}
    return {"metadata": meta | {"generation": 3}, "spec": spec, "status": status}


async def checked(spec, status):
    record, store = record_of_before(), RunStore()
    runtime = {"name": "default", "uid": "runtime", "resourceVersion": "1"}
    allowed = {"allowedNamespaces": {"from": "All"}}
    store.put_object("ClusterRolloutRuntime", {"metadata": runtime, "spec": allowed})
    store.put_object("RolloutRun", run(spec, status))
    store.put(CONFIG_MAPS, record)
    app = web.Application()

    async def answer(request):
        found = record if request.path.endswith(record["metadata"]["name"]) else {"metadata": {}}
        return web.json_response(found | ({"items": []} if found is not record else {}))

    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        client = KubeClient(session, str(server.make_url("")).rstrip("/"))
        observer = Observer(
            client=client,
            store=store,
            platform=lambda: PLATFORM,
            asker=Asker(client=client, served=lambda: False),
            keyring=lambda: RING,
        )
        stored = store.find(Key(namespace="ns", name="run", kind="RolloutRun"))
        return await observer.check(observer.look(stored), stored)


@pytest.mark.parametrize("env", [[], [{"name": "OTHER", "value": "1"}]])
async def test_the_next_attempt_is_refused_with_the_field_and_its_new_place(env):
    status = {"attempt": 1, "conditions": [SUSPENDED]}
    observed = await checked({**SPEC, "env": env}, status)
    assert observed.gate is not None and observed.gate.reason == "InvalidSpec"
    assert "spec.secretEnv has moved: write env: [{name: ..., valueFrom:" in observed.gate.message


async def test_it_begins_once_the_spec_says_so_at_the_new_place():
    status = {"attempt": 1, "conditions": [SUSPENDED]}
    observed = await checked({**SPEC, "env": TODAY}, status)
    assert observed.gate is None or "has moved" not in observed.gate.message


async def test_the_attempt_that_lives_goes_on():
    observed = await checked(SPEC, {"attempt": 1})
    assert observed.gate is None
