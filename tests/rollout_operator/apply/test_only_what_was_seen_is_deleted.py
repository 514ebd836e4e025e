"""Every delete carries the uid and resourceVersion that were seen: a namesake, or what has changed, stays."""

from dataclasses import replace

import pytest
from queues import QUOTA
from worlds import World

from rollout_api import names
from rollout_operator.errors import Conflict, Forbidden, NotFound
from rollout_operator.kube.resources import PODS, SECRETS, SERVICES, STATEFUL_SETS
from rollout_operator.kueue.resources import WORKLOADS
from rollout_operator.run.apply import Applier
from rollout_operator.run.attempt import ScaleState
from rollout_operator.run.plan.model import Desired, PodDeletion, QuotaStep
from rollout_operator.run.queue.keeper import Keeper
from rollout_operator.run.render.inputs import owner_reference
from rollout_operator.run.tls import Authorities
from rollout_operator.signing import Keyring

SERVICE, SET, SECRET, POD = (
    ("services", "svc"),
    ("statefulsets", "set"),
    ("secrets", "run-tls"),
    ("pods", "run-learner-0"),
)


class Server:
    """Objects by place, deleted under the rules of the API server's preconditions."""

    def __init__(self, *forbidden):
        self.objects = {}
        self.forbidden = forbidden

    def put(self, place, uid="seen", version="1", owner="uid-0001"):
        owners = [owner_reference("run", owner)]
        meta = {"name": place[1], "uid": uid, "resourceVersion": version, "namespace": "ns"}
        labels = {names.LABEL_RUN: "run", names.LABEL_ATTEMPT: "1"}
        self.objects[place] = {"metadata": {**meta, "ownerReferences": owners, "labels": labels}}
        return self.objects[place]

    async def get(self, resource, _namespace, name, **_):
        try:
            return self.objects[resource.plural, name]
        except KeyError as error:
            raise NotFound(f"get {name}", 404, "not found") from error

    async def list(self, *_, **__):
        return {"items": []}

    async def delete(
        self, resource, _namespace, name, *, uid, resource_version, grace_seconds=None
    ):
        del grace_seconds
        place = (resource.plural, name)
        if resource.plural in self.forbidden:
            raise Forbidden(f"delete {name}", 403, "cannot delete")
        if place not in self.objects:
            return
        meta = self.objects[place]["metadata"]
        if (meta["uid"], meta["resourceVersion"]) != (uid, resource_version):
            raise Conflict(f"delete {name}", 409, "Precondition failed")
        del self.objects[place]


class Known:
    """The store as it was when the operator looked last."""

    def __init__(self, *children):
        self.found = {(one.kind, one.name): one for one in children}

    def children(self, _namespace, _uid):
        return self.found


def child(kind, name, expected=""):
    made = World()._child(kind, name, 1, None)
    return replace(made, uid="seen", version=1, expected=expected)


def applier(server, *children):
    authorities = Authorities(client=server)
    return Applier(
        client=server, store=Known(*children), keys=str, keyring=Keyring, authorities=authorities
    )


def observed():
    return World().observe()


CHANGED = [{"uid": "another"}, {"version": "2"}, {"uid": "another", "version": "2"}]


@pytest.mark.parametrize("live", CHANGED)
async def test_a_pod_that_is_not_the_one_that_was_seen_stays(live):
    server = Server()
    server.put(POD, **live)
    seen = replace(World()._pod(POD[1], "learner", 1, 1), uid="seen", version=1)
    old = replace(seen, name="run-learner-1")
    server.put((PODS.plural, old.name))
    wanted = Desired(
        attempt=1,
        record="r",
        live={"learner": ScaleState(replicas=1)},
        deletions=(PodDeletion(pod=seen, why="old", force=True), PodDeletion(pod=old, why="old")),
    )
    with pytest.raises(Conflict):
        await applier(server)._delete_pods(wanted)
    assert set(server.objects) == {POD}


@pytest.mark.parametrize("live", CHANGED)
async def test_a_child_that_is_not_the_one_that_was_seen_stays_and_keeps_no_other(live):
    server = Server()
    server.put(SERVICE, **live)
    server.put(SET)
    known = [child("Service", "svc"), child("StatefulSet", "set")]
    with pytest.raises(Conflict):
        await applier(server, *known).remove(observed())
    assert set(server.objects) == {SERVICE}


async def test_what_may_not_be_deleted_keeps_its_record_so_that_it_is_not_forgotten():
    server = Server("secrets")
    server.put(SECRET)
    server.put(SERVICE)
    server.put(("configmaps", "record"))
    known = [child("Service", "svc"), child("ConfigMap", "record", expected="Service/svc")]
    with pytest.raises(Forbidden):
        await applier(server, *known).remove(observed())
    assert set(server.objects) == {SECRET, ("configmaps", "record")}
    server.forbidden = ()
    await applier(server, *known).remove(observed())
    assert server.objects == {}


async def test_a_secret_of_somebody_else_stays():
    server = Server()
    server.put(SECRET, owner="somebody")
    await applier(server).remove(observed())
    assert set(server.objects) == {SECRET}


@pytest.mark.parametrize("live", CHANGED)
async def test_a_workload_that_is_not_the_one_that_was_seen_stays(live):
    server = Server()
    place = (WORKLOADS.plural, "run")
    server.put(place, **live)
    quota = replace(QUOTA, uid="seen")
    keeper = Keeper(client=server, store=Known())
    with pytest.raises(Conflict):
        await keeper.act(replace(observed(), quota=quota), QuotaStep(verb="GiveUp"))
    assert set(server.objects) == {place}


def test_the_places_are_where_the_operator_looks():
    assert {SERVICES.plural, STATEFUL_SETS.plural, SECRETS.plural, PODS.plural} == {
        place[0] for place in (SERVICE, SET, SECRET, POD)
    }
