"""A record has the number of its form: one from before there were numbers opens, one of another release is refused whole.

``record_format_1.json`` is what the last release without numbers wrote, signed with the tests' key.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_calls import ApiServer, build_applier, look
from worlds import BEGIN, RING, build_inputs

from rollout_api import names
from rollout_operator.errors import RecordFormatUnknown, RecordUnverified
from rollout_operator.kube.resources import CONFIG_MAPS
from rollout_operator.run.attempt import read_record, render_record, sign_record
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.plan.plan import plan_run
from rollout_operator.signing import CHILDREN_FILE, RECORD_FORMAT, record_content

BEFORE = Path(__file__).with_name("record_format_1.json")


def live(manifest):
    """A manifest as the API server gives it back."""
    meta = manifest["metadata"]
    return {**manifest, "metadata": {**meta, "uid": meta["name"], "resourceVersion": "7"}}


def before():
    return live(json.loads(BEFORE.read_text()))


def rendered():
    return sign_record(render_record(replace(build_inputs(), generation=1)), RING).config_map


def saying(found):
    """Today's record with another number, or none, and the signature that it had."""
    record = live(rendered())
    meta = dict(record["metadata"], annotations=dict(record["metadata"]["annotations"]))
    meta["annotations"].pop(names.ANNOTATION_FORMAT)
    if found is not None:
        meta["annotations"][names.ANNOTATION_FORMAT] = found
    return {**record, "metadata": meta}


def future(found="2"):
    """What a later release would write: its own bytes, in the envelope that every release signs."""
    record = saying(found)
    record["binaryData"] = {CHILDREN_FILE: "bm90IGd6aXA="}
    signature = RING.sign(record_content(record))
    record["metadata"]["annotations"][names.ANNOTATION_SIGNATURE] = signature
    return record


def store_of(*records):
    store = RunStore()
    for record in records:
        store.put(CONFIG_MAPS, record)
    return store


def conditions(plan):
    return {one["type"]: one for one in plan.status["conditions"]}


def test_a_record_that_says_no_format_opens():
    assert names.ANNOTATION_FORMAT not in before()["metadata"]["annotations"]
    record = read_record(before(), RING)
    assert (record.attempt, len(record.children)) == (
        1,
        len(render_record(build_inputs()).children),
    )


def test_a_run_that_began_before_records_said_their_format_lives_on():
    record = before()
    observed = look(store_of(record), {"attempt": 1})
    assert (observed.unverified, observed.unread) == ((), ())
    assert plan_run(observed, BEGIN).wanted.record == record["metadata"]["name"]


def test_a_record_says_its_format():
    annotations = rendered()["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_FORMAT] == RECORD_FORMAT
    assert read_record(live(rendered()), RING).attempt == 1


@pytest.mark.parametrize("found", [None, "", "0", "2"])
def test_another_number_than_the_one_that_was_signed_does_not_verify(found):
    with pytest.raises(RecordUnverified):
        read_record(saying(found), RING)
    observed = look(store_of(saying(found)), {"attempt": 1})
    assert (len(observed.unverified), observed.unread) == (1, ())


def test_a_number_given_to_a_record_that_had_none_does_not_verify():
    record = before()
    record["metadata"]["annotations"][names.ANNOTATION_FORMAT] = "1"
    with pytest.raises(RecordUnverified):
        read_record(record, RING)


@pytest.mark.parametrize("found", ["2", "01", "", "one"])
def test_a_record_of_another_format_is_refused_with_both_numbers(found):
    words = f"is a record of format {found}; this operator reads format {RECORD_FORMAT}"
    with pytest.raises(RecordFormatUnknown, match=words):
        read_record(future(found), RING)


@pytest.mark.parametrize("attempt", [0, 1], ids=["before the status told of it", "after"])
def test_a_run_whose_record_has_another_format_says_so_and_keeps_its_pods(attempt):
    record = future()
    observed = look(store_of(record), {"attempt": attempt})
    plan = plan_run(observed, BEGIN)
    found = conditions(plan)
    assert found["Stalled"]["reason"] == found["Ready"]["reason"] == "RecordFormatUnknown"
    message = found["Ready"]["message"]
    assert record["metadata"]["name"] in message
    assert f"format 2; this operator reads format {RECORD_FORMAT}" in message
    assert (plan.wanted, dict(plan.lower), plan.remove_children) == (None, {}, False)


def later():
    """Of a later release that began another attempt, died before it said so, and was set back to this one."""
    record = future()
    record["metadata"] |= {"name": "run-later", "uid": "later"}
    record["metadata"]["labels"] = {**record["metadata"]["labels"], names.LABEL_ATTEMPT: "2"}
    signature = RING.sign(record_content(record))
    record["metadata"]["annotations"][names.ANNOTATION_SIGNATURE] = signature
    return record


SUSPENDED = {
    "type": "Suspended",
    "status": "True",
    "reason": "Suspended",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize("before", [[], [SUSPENDED]], ids=["running", "resumed a moment ago"])
def test_a_newer_attempt_that_is_not_read_is_not_replaced_by_the_one_before_it(before):
    status = {"attempt": 1, "conditions": before}
    plan = plan_run(look(store_of(live(rendered()), later()), status), BEGIN)
    assert conditions(plan)["Ready"]["reason"] == "RecordFormatUnknown"
    assert (plan.wanted, dict(plan.lower), plan.remove_children) == (None, {}, False)


def test_it_is_suspended_without_the_record_before_it_and_then_resumed_as_another():
    store = store_of(live(rendered()), later())
    suspended = plan_run(look(store, {"attempt": 1}, suspend=True), BEGIN)
    assert (suspended.wanted, suspended.status["attempt"]) == (None, 2)
    resumed = plan_run(look(store, json.loads(json.dumps(suspended.status))), BEGIN)
    assert (resumed.wanted.attempt, resumed.wanted.record) == (3, None)


def test_a_record_of_ours_is_named_before_one_of_a_stranger():
    stranger = saying("3")
    stranger["metadata"] |= {"name": "aaa", "uid": "aaa"}
    plan = plan_run(look(store_of(stranger, future()), {"attempt": 1}), BEGIN)
    assert conditions(plan)["Ready"]["reason"] == "RecordFormatUnknown"


def test_a_person_resumes_it_as_a_new_attempt():
    store = store_of(future())
    suspended = plan_run(look(store, {"attempt": 1}, suspend=True), BEGIN)
    assert conditions(suspended)["Suspended"]["status"] == "True"
    status = json.loads(json.dumps(suspended.status))
    resumed = plan_run(look(store, status), BEGIN)
    assert (resumed.wanted.attempt, resumed.wanted.record) == (2, None)


async def test_a_record_that_becomes_one_of_another_format_is_not_applied():
    opened = live(rendered())
    store, server = store_of(opened), ApiServer(future())
    observed = look(store, {"attempt": 1})
    plan = plan_run(observed, BEGIN)
    with pytest.raises(RecordFormatUnknown):
        await build_applier(server, store).ensure(observed, plan.wanted, build_inputs, BEGIN)
    assert not [path for path in server.paths() if "statefulsets" in path]
