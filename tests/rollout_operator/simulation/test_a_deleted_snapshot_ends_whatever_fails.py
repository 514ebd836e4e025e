"""A RolloutSnapshot with ``deletionPolicy: Delete`` goes after its bytes, whatever call fails and whenever the operator dies."""

import json

import pytest
from model_requests import FAULTS
from purge_story import JOB, PLACE, ROOT, RUN_UID, UID, play, runtime, snapshot

from rollout_api import names
from rollout_operator.snapshot.purge.plan import PURGE_SECONDS


def environment(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", "") for one in container["env"]}


def order_of(job):
    return json.loads(environment(job)["ROLLOUT_PURGE_ORDER"])


@pytest.fixture(scope="module")
def clean():
    return play()


def test_its_bytes_go_before_it_by_one_job_in_its_namespace(clean):
    assert clean.broken == [], clean.log
    assert clean.purged_at is not None
    assert clean.gone_at > clean.purged_at
    (job,) = clean.jobs
    assert job["metadata"]["namespace"] == "ns"
    assert job["metadata"]["name"] == names.purge_name(UID)
    said = order_of(job)
    assert said["storage"]["uri"] == f"{ROOT}/ns"
    assert (said["run"]["uid"], said["snapshot"], said["ledger"]) == (RUN_UID, UID, "Gone")
    assert [one["metadata"]["name"] for one in clean.accounts] == [names.purge_name(UID)]
    assert clean.conditions == [("False", "Purging")]
    (event,) = [one for one in clean.events if one["reason"] == "Purged"]
    assert event["note"] == "1 snapshots and 3 objects removed"
    assert event["regarding"]["kind"] == "RolloutSnapshot"


@pytest.mark.parametrize("kind", FAULTS)
def test_with_a_fault_at_every_call_it_comes_to_the_same_end(clean, kind):
    assert clean.num_calls > 10
    for at_call in range(1, clean.num_calls + 1):
        life = play(kind=kind, at_call=at_call)
        explained = "\n".join([f"{kind} at {at_call}", *life.log, *life.broken])
        assert life.broken == [], explained
        assert life.purged_at is not None, explained
        assert life.gone_at is not None, explained
        assert life.gone_at > life.purged_at, explained
        assert len(life.jobs) == 1, explained


def test_a_store_that_is_away_is_told_and_holds_nobody_for_ever():
    life = play(job=("Error", "PlaceUnreachable: s3://b/runs: 503\x1b[2J Slow down"))
    assert life.broken == []
    assert ("False", "StorageUnreachable") in life.conditions
    assert life.purged_at is None
    assert PURGE_SECONDS <= life.gone_at <= PURGE_SECONDS + 60
    assert life.reasons() == ["StorageUnreachable", "PurgeGivenUp"]
    assert f"{ROOT}/ns/{RUN_UID}" in life.events[-1]["note"]
    assert "503" in life.events[-1]["note"]
    assert not any("\x1b" in one["note"] for one in life.events)


def test_a_job_that_never_ends_holds_nobody_for_ever():
    life = play(job=None)
    assert PURGE_SECONDS <= life.gone_at <= PURGE_SECONDS + 60
    assert life.reasons() == ["PurgeGivenUp"]


def test_a_job_that_has_failed_for_good_lets_go():
    life = play(job=("Failed", "SpecError: no such bucket"))
    assert life.gone_at < PURGE_SECONDS
    assert life.reasons() == ["PurgeGivenUp"]
    assert "no such bucket" in life.events[0]["note"]


def test_who_writes_retain_lets_go_at_once_and_is_told_where_the_bytes_are():
    def retain(model):
        model.merge("kubectl", PLACE, {"spec": {"deletionPolicy": "Retain"}})

    life = play(job=None, acts={60.0: retain})
    assert 60 <= life.gone_at < 80
    (event,) = life.events
    assert (event["type"], event["reason"]) == ("Normal", "PurgeGivenUp")
    assert f"{ROOT}/ns/{RUN_UID}" in event["note"]


def test_bytes_of_one_that_is_retained_are_nobodys_business():
    life = play(objects=[runtime(), snapshot("Retain")])
    assert life.gone_at is not None
    assert life.gone_at < 1
    assert life.jobs == life.events == []


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([snapshot()], "RuntimeNotFound"),
        (
            [runtime(allowedNamespaces={"from": "Names", "names": ["else"]}), snapshot()],
            "NotAllowed",
        ),
        ([runtime(storage={"uri": "s3://b/else"}), snapshot()], "NotAllowed"),
        ([runtime(), snapshot(storage=None)], "NotSupported"),
    ],
)
def test_what_nobody_could_reach_is_told_and_let_go_in_the_end(objects, reason):
    for one in objects:
        said = one.get("status", {})
        if said.get("storage", "") is None:
            del said["storage"]
    life = play(objects=objects)
    assert life.jobs == []
    assert ("False", reason) in life.conditions
    assert life.gone_at >= PURGE_SECONDS
    assert life.reasons() == [reason, "PurgeGivenUp"]


def test_a_job_of_its_name_that_is_anothers_is_not_believed():
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x", "controller": True}
    meta = {"name": JOB[2], "namespace": "ns", "uid": "else", "ownerReferences": [owner]}
    ended = {"conditions": [{"type": "Complete", "status": "True"}]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {}, "status": ended}
    life = play(objects=[runtime(), snapshot(), job])
    assert ("False", "FieldConflict") in life.conditions
    assert life.reasons() == ["FieldConflict", "PurgeGivenUp"]
    assert life.purged_at is None


def test_a_run_that_goes_on_is_left_its_objects():
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
    meta = {"name": "run", "namespace": "ns", "uid": RUN_UID}
    run = {**head, "metadata": meta, "spec": {"suspend": True}}
    life = play(objects=[runtime(), snapshot(), run])
    assert order_of(life.jobs[0])["ledger"] == "Alive"


def test_a_ledger_that_is_kept_is_asked_what_it_names():
    name = f"ledger-{RUN_UID[:8]}-run-coordinator-0"
    meta = {"name": name, "namespace": "ns", "uid": "claim"}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": {}}
    life = play(objects=[runtime(), snapshot(), claim])
    (job,) = life.jobs
    assert order_of(job)["ledger"] == "Kept"
    assert order_of(job)["ledgerPath"] == "/var/lib/rollout/ledger.db"
    volumes = job["spec"]["template"]["spec"]["volumes"]
    assert {"name": "ledger", "persistentVolumeClaim": {"claimName": name}} in volumes


def test_a_status_that_nobody_can_read_holds_nobody():
    """Another release may have written it."""
    broken = snapshot(storage={"place": "?"})
    broken["metadata"]["finalizers"] = [names.FINALIZER_SNAPSHOT]
    life = play(objects=[runtime(), broken])
    assert life.jobs == []
    assert life.gone_at is not None
    assert life.gone_at < 5
