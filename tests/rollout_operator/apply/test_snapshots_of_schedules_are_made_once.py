"""Snapshots of schedules leave for the API server as objects of nobody, once, and go as they were seen; their run hears of their end."""

import pytest
from worlds import World

from rollout_api.names import LABEL_RUN_UID, LABEL_SCHEDULE
from rollout_api.v1alpha1.snapshot import RolloutSnapshot
from rollout_operator.controller.queue import Key
from rollout_operator.errors import Conflict, Forbidden, NotFound, Terminating, Unavailable
from rollout_operator.run.index.made import find_made
from rollout_operator.run.index.references import SNAPSHOT
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.plan.model import MadeSnapshot, Plan, SnapshotOrder
from rollout_operator.run.saving import Saver

RUN = Key(namespace="ns", name="run", kind="RolloutRun")
ORDER = SnapshotOrder(
    name="run-nightly-0af12-1", schedule="nightly", description="of two", deadline_seconds=600
)
MADE = MadeSnapshot(
    name="run-nightly-0af12-0",
    uid="u-0",
    version=7,
    schedule="nightly",
    created="2026-01-01T00:00:00Z",
    state="Complete",
)
FINISHED = [{"type": "Finished", "status": "True", "reason": "SnapshotTaken", "message": "m"}]
FAILED = [
    {**one, "type": kind, "reason": "RunGone"}
    for one in FINISHED
    for kind in ("Failed", "Finished")
]


class ApiServer:
    """Takes one write after the other, or fails."""

    def __init__(self, error=None):
        self.error, self.made, self.deleted = error, [], []

    async def create(self, body, resource, *, manager):
        if self.error is not None:
            raise self.error
        self.made.append(body)
        meta = {**body["metadata"], "uid": "u-1", "resourceVersion": "9"}
        return {**body, "metadata": {**meta, "creationTimestamp": "2026-01-01T00:00:01Z"}}

    async def delete(self, resource, namespace, name, *, uid, resource_version):
        if self.error is not None:
            raise self.error
        self.deleted.append((resource.plural, namespace, name, uid, resource_version))


def store(woken=lambda _: None):
    found = RunStore(woken)
    meta = {"name": "run", "namespace": "ns", "uid": "uid-0001", "resourceVersion": "1"}
    found.put_object("RolloutRun", {"metadata": meta, "spec": {}})
    return found


def saved(name="a", version=2, *, uid="uid-0001", conditions=(), policy="Delete", **meta):
    labels = {LABEL_SCHEDULE: "nightly", LABEL_RUN_UID: uid}
    head = {"name": name, "namespace": "ns", "uid": f"u-{name}", "labels": labels}
    spec = {"source": {"run": {"name": "run"}}, "deletionPolicy": policy}
    meta = {**head, "creationTimestamp": f"2026-01-0{version}T00:00:00Z", **meta}
    return {
        "metadata": {**meta, "resourceVersion": str(version)},
        "spec": spec,
        "status": {"conditions": list(conditions)},
    }


async def test_one_is_made_that_outlives_its_run_and_takes_its_bytes_along():
    server, known = ApiServer(), store()
    observed = World().observe()
    assert await Saver(client=server, store=known).save(observed, Plan(makes=(ORDER,))) is None
    (made,) = server.made
    parsed = RolloutSnapshot.model_validate(made)
    assert parsed.spec.deletion_policy == "Delete"
    assert parsed.spec.source.run.uid == "uid-0001"
    assert parsed.spec.deadline_seconds == 600
    assert "ownerReferences" not in made["metadata"]
    (found,) = find_made(known, known.find(RUN))
    assert (found.name, found.schedule, found.state) == (ORDER.name, "nightly", "Active")


async def test_one_that_is_there_was_made_before_and_one_that_has_changed_is_looked_at_again():
    server = ApiServer(Conflict("x", 409, "there"))
    plan = Plan(makes=(ORDER,), drops=(MADE,))
    assert await Saver(client=server, store=store()).save(World().observe(), plan) is None


async def test_one_goes_as_it_was_seen():
    server = ApiServer()
    await Saver(client=server, store=store()).save(World().observe(), Plan(drops=(MADE,)))
    assert server.deleted == [("rolloutsnapshots", "ns", MADE.name, "u-0", "7")]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Forbidden, "Forbidden"), (Unavailable, "ApiServerRefused"), (NotFound, "ApiServerRefused")],
)
async def test_what_fails_is_said_and_stops_nothing_else(kind, reason):
    server = ApiServer(kind("create x", 500, "no room"))
    told = await Saver(client=server, store=store()).save(World().observe(), Plan(makes=(ORDER,)))
    assert told.reason == reason
    assert "no room" in told.message


async def test_a_namespace_that_goes_is_no_fault():
    server = ApiServer(Terminating("create x", 403, "being terminated"))
    with pytest.raises(Terminating):
        await Saver(client=server, store=store()).save(World().observe(), Plan(makes=(ORDER,)))


def test_a_run_knows_those_that_its_own_schedules_have_made_the_oldest_first():
    known = store()
    known.put_object(SNAPSHOT, saved("c", 4, conditions=FAILED))
    known.put_object(SNAPSHOT, saved("b", 3, conditions=FINISHED, policy="Retain"))
    known.put_object(SNAPSHOT, saved("a", 2, deletionTimestamp="2026-01-02T00:00:00Z"))
    known.put_object(SNAPSHOT, saved("of-another", 5, uid="uid-0000"))
    by_hand = saved("by-hand", 6)
    known.put_object(SNAPSHOT, {**by_hand, "metadata": {**by_hand["metadata"], "labels": {}}})
    found = find_made(known, known.find(RUN))
    assert [(one.name, one.state, one.deleting, one.retained) for one in found] == [
        ("a", "Active", True, False),
        ("b", "Complete", False, True),
        ("c", "Failed", False, False),
    ]
    assert found[2].words == "RunGone: m"


def test_the_run_is_woken_when_one_is_over_and_by_no_other_change():
    woken = []
    known = store(woken.append)
    known.put_object(SNAPSHOT, saved(version=2))
    del woken[:]
    known.put_object(SNAPSHOT, saved(version=3))
    assert RUN not in woken
    known.put_object(SNAPSHOT, saved(version=4, conditions=FINISHED))
    assert woken.count(RUN) == 1
    known.put_object(SNAPSHOT, saved(version=5, conditions=FINISHED))
    known.drop_object(SNAPSHOT, saved(version=5))
    assert woken.count(RUN) == 1
    known.put_object(SNAPSHOT, {**saved("b", 6)})
    known.drop_object(SNAPSHOT, saved("b", 6))
    assert woken.count(RUN) == 2
