"""The attacker may write any object in one namespace, and puts texts where the operator expects its own."""

import asyncio
from datetime import UTC, datetime

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cluster_calls import UID, ApiServer, look

from rollout_api import names
from rollout_operator.cache.children import parse_child
from rollout_operator.errors import CoordinatorUnreachable, FieldConflict
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.config import Connection, open_outer_session, open_session
from rollout_operator.kube.informer import Informer
from rollout_operator.kube.managed_fields import project, writer_of
from rollout_operator.kube.resources import CONFIG_MAPS, STATEFUL_SETS
from rollout_operator.run.certificate import issue
from rollout_operator.run.coordinator import HttpCoordinators
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.render import contract
from rollout_operator.run.tls import Authorities, build_secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NO_NUMBERS = ("\u00b2", "\u0661", "9" * 5000, "-1", "1e9", "", " 1", "\u2028")
NO_TIMES = ("never", "2026-01-01T00:00:00", "9999-99-99T00:00:00Z", "\u00b2", "0" * 70_000)
COUNTS = (
    names.ANNOTATION_GENERATION,
    names.ANNOTATION_FIRST_INCARNATION,
    names.ANNOTATION_DISRUPTIONS,
    names.ANNOTATION_GANG_TRIES,
)


def build(kind="StatefulSet", name="run-learner", **annotations):
    owner = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "name": "run",
        "uid": UID,
        "controller": True,
    }
    meta = {
        "name": name,
        "namespace": "ns",
        "uid": name,
        "resourceVersion": "5",
        "labels": {names.LABEL_RUN: "run", names.LABEL_MANAGED_BY: names.MANAGER_CHILDREN},
        "annotations": annotations,
        "ownerReferences": [owner],
    }
    spec = {"replicas": 0, "template": {"metadata": {"labels": {}}}}
    return {"kind": kind, "metadata": meta, "spec": spec}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("text", NO_NUMBERS, ids=lambda one: ascii(one[:9]))
def test_a_count_of_mine_is_no_number(name, text):
    for kind in ("StatefulSet", "ConfigMap"):
        child = parse_child(kind, build(kind, **{name: text}))
        assert child.generation == 0
        assert child.workload is None or (child.workload.first, child.workload.disruptions) == (
            1,
            0,
        )


@pytest.mark.parametrize("text", NO_TIMES, ids=lambda one: ascii(one[:20]))
def test_a_time_of_mine_is_no_time(text):
    child = parse_child("StatefulSet", build(**{names.ANNOTATION_HOLD_UNTIL: text}))
    assert child.workload.hold_until == ""


def test_a_time_that_the_operator_wrote_is_kept():
    text = "2026-01-01T00:00:00Z"
    child = parse_child("StatefulSet", build(**{names.ANNOTATION_HOLD_UNTIL: text}))
    assert child.workload.hold_until == text


HOSTILE_FIELDS = {
    "a key that is a mapping": {'k:{"name":{"a":1}}': {}},
    "a key that names a mapping": {'k:{"resources":"x"}': {"f:name": {}}},
    "a key that is a list": {"k:[1]": {}},
    "a value that is no JSON": {"v:{": {}},
    "a path without a kind": {"": {}, "x": {}},
    "a value deeper than any": {"v:" + "[" * 200_000: {}},
}


@pytest.mark.parametrize("fields", HOSTILE_FIELDS.values(), ids=HOSTILE_FIELDS.keys())
def test_my_field_manager_owns_what_no_path_can_name(fields):
    live = build(**{names.ANNOTATION_APPLIED: "x"})
    live["spec"]["list"] = [{"name": "a", "resources": {"limits": {}}}, 1, "x"]
    live["metadata"]["managedFields"] = [
        {
            "manager": names.MANAGER_CHILDREN,
            "operation": "Apply",
            "fieldsV1": {"f:spec": {"f:list": fields, **fields}},
        }
    ]
    assert parse_child("StatefulSet", live).digest == "x"
    assert project([{"name": "a"}], {'k:{"name":"a"}': {}, **fields}) == [{"name": "a"}]


def test_my_client_has_no_name():
    live = build()
    live["metadata"]["managedFields"] = [{"operation": "Update", "fieldsV1": {"f:spec": {}}}]
    assert parse_child("StatefulSet", live).digest == ""
    assert writer_of(live) == ""


class Choosy:
    """A sink that cannot take one object."""

    def __init__(self):
        self.taken, self.gone = [], []

    def put(self, _, live):
        if live["metadata"]["name"] == "mine":
            raise ValueError("no number")
        self.taken.append(live["metadata"]["name"])

    def drop(self, _, live):
        self.gone.append(live["metadata"]["name"])

    def keep_only(self, *_):
        pass


async def test_an_object_that_nobody_can_read_ends_the_watch_of_all_others(caplog):
    def named(name):
        return {"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "2"}}

    async def answer(request):
        if "watch" in request.query:
            await asyncio.sleep(30)
        return web.json_response(
            {"metadata": {"resourceVersion": "3"}, "items": [named("mine"), named("honest")]}
        )

    app, sink = web.Application(), Choosy()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        connection = Connection(server=str(server.make_url("")).rstrip("/"))
        async with open_session(connection) as session:
            client = KubeClient(session, connection.server)
            reader = Informer(client=client, resource=CONFIG_MAPS, sink=sink)
            task = asyncio.create_task(reader.run())
            await asyncio.wait_for(reader.synced.wait(), 60)
            task.cancel()
    assert (sink.taken, sink.gone) == (["honest"], []), "what was known of it stays"
    assert "configmaps ns/mine" in caplog.text


# -- the run's own Secret, which its editor may write ------------------------------------------------


def secret(**changed):
    seen = type("Seen", (), {"name": "run", "namespace": "ns", "uid": UID})()
    made = build_secret(seen, issue("run", "ns", NOW))
    made["metadata"] |= {"uid": "secret", "resourceVersion": "3"}
    return made | changed


def without_annotations():
    made = secret()
    return made | {"metadata": {k: v for k, v in made["metadata"].items() if k != "annotations"}}


def ending(text):
    made = secret()
    return made | {
        "metadata": made["metadata"] | {"annotations": {names.ANNOTATION_NOT_AFTER: text}}
    }


SPOILED = {
    "without an end": without_annotations(),
    "with an end that is no time": ending("never"),
    "with an end in no zone": ending("2026-01-01T00:00:00"),
    "ended, and empty": ending("2020-01-01T00:00:00Z") | {"data": None},
    "ended, with keys that are none": ending("2020-01-01T00:00:00Z")
    | {"data": {contract.AUTHORITY: "eA==", contract.CA_KEY: "eA=="}},
    "ended, with bytes that are no text": ending("2020-01-01T00:00:00Z")
    | {"data": {contract.AUTHORITY: "/w==", contract.CA_KEY: "/w=="}},
}


@pytest.mark.parametrize("spoiled", SPOILED.values(), ids=SPOILED.keys())
async def test_my_certificate_makes_a_look_fail_without_a_word(spoiled):
    observed = look(RunStore())
    with pytest.raises(FieldConflict, match=r"Secret run-tls .* delete it"):
        await Authorities(client=ApiServer(spoiled)).ensure(
            observed, NOW, is_new=False, doubted=True
        )


@pytest.mark.parametrize(
    "data",
    [None, {}, {contract.AUTHORITY: "/w=="}, {contract.AUTHORITY: "!"}, {contract.AUTHORITY: ""}],
)
async def test_my_authority_keeps_a_run_from_being_suspended(data):
    class Caller(HttpCoordinators):
        async def _token(self, uid):
            del uid
            return "token"

    async with open_outer_session() as session:
        server = ApiServer(secret(data=data))
        caller = Caller(client=server, session=session, namespace="n", account="a")
        with pytest.raises(CoordinatorUnreachable):
            await caller.stop(look(RunStore()), "Suspended")


def test_what_is_kept_of_hostile_children_is_planned_with():
    store = RunStore()
    for kind in (STATEFUL_SETS, CONFIG_MAPS):
        store.put(kind, build(kind.kind, **dict.fromkeys(COUNTS, "\u00b2")))
    assert look(store).children.keys() == {
        ("StatefulSet", "run-learner"),
        ("ConfigMap", "run-learner"),
    }
