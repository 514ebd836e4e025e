"""The store: newer versions win, deletions are final, every change names the run it is about."""

import pytest

from rollout_api import names
from rollout_operator.controller.queue import Key
from rollout_operator.kube.resources import NODES, PODS, SERVICES, STATEFUL_SETS
from rollout_operator.run.index.store import RunStore

RUN = Key(namespace="n", name="r", kind="RolloutRun")


def run(version=1, uid="u", status=None):
    meta = {"name": "r", "namespace": "n", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"seed": version}, "status": status or {}}


def child(version=1, uid="s"):
    return {
        "metadata": {
            "name": "svc",
            "namespace": "n",
            "uid": uid,
            "resourceVersion": str(version),
            "labels": {names.LABEL_RUN: "r", names.LABEL_ATTEMPT: "1"},
            "ownerReferences": [owner("rollout.dev/v1alpha1", "RolloutRun", "u")],
        }
    }


def owner(version, kind, uid):
    return {"apiVersion": version, "kind": kind, "name": uid, "uid": uid, "controller": True}


def stateful_set():
    live = child(uid="set")
    spec = {"replicas": 1, "template": {"metadata": {}}}
    return live | {"metadata": live["metadata"] | {"name": "r-actors"}, "spec": spec}


def pod(version=1, node="", phase="Pending"):
    labels = {names.LABEL_RUN: "r", names.LABEL_RUN_UID: "u", names.LABEL_ROLE: "actor"}
    meta = {
        "name": "p-0",
        "namespace": "n",
        "uid": "p",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": labels,
        "ownerReferences": [owner("apps/v1", "StatefulSet", "set")],
    }
    return {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": phase}}


def node(version, ready="True"):
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    meta = {"name": "a", "uid": "node", "resourceVersion": str(version)}
    return {"metadata": meta, "status": {"conditions": [condition]}}


@pytest.fixture
def told():
    return []


@pytest.fixture
def store(told):
    made = RunStore(told.append)
    made.put_object("RolloutRun", run())
    told.clear()
    return made


def test_an_older_version_does_not_replace_a_newer_one(store, told):
    store.put_object("RolloutRun", run(5))
    store.put_object("RolloutRun", run(3))
    store.put_object("RolloutRun", run(5))
    assert store.find(RUN).version == 5
    assert told == [RUN]


def test_the_answer_to_our_own_write_is_no_news(store, told):
    store.put_object("RolloutRun", run(7), notify=False)
    assert store.find(RUN).version == 7
    assert told == []


def test_the_answer_to_a_write_of_a_child_is_no_news_and_its_echo_neither(store, told):
    assert store.learn(SERVICES, child(4)).version == 4
    store.put(SERVICES, child(4))
    assert told == []


def test_only_the_version_that_was_written_is_its_echo_and_only_once(store):
    store.learn(SERVICES, child(4))
    assert not store.is_echo("s", 3)
    assert store.is_echo("s", 4)
    assert not store.is_echo("s", 4)
    store.learn(SERVICES, child(6))
    store.drop(SERVICES, child(7))
    assert not store.is_echo("s", 6)


def test_an_answer_that_comes_after_newer_news_is_not_the_child(store):
    store.put(SERVICES, child(5))
    assert store.learn(SERVICES, child(4)) is None
    assert store.children("n", "u")["Service", "svc"].version == 5


def test_a_namesake_made_anew_replaces_the_old_one_and_late_news_of_that_are_dropped(store):
    store.drop_object("RolloutRun", run(4))
    store.put_object("RolloutRun", run(9, uid="new"))
    store.put_object("RolloutRun", run(5))
    assert store.find(RUN).uid == "new"


def test_a_child_names_its_run(store, told):
    store.put(SERVICES, child())
    assert told == [RUN]
    assert ("Service", "svc") in store.children("n", "u")
    store.drop(SERVICES, child(2))
    assert told == [RUN, RUN]
    assert store.children("n", "u") == {}


def test_a_deleted_child_does_not_come_back_by_late_news(store):
    store.put(SERVICES, child(1))
    store.drop(SERVICES, child(2))
    store.put(SERVICES, child(1))
    assert store.children("n", "u") == {}


def test_objects_without_a_run_are_nobodys(store, told):
    stranger = child()
    stranger["metadata"]["ownerReferences"] = []
    store.put(SERVICES, stranger)
    assert told == []


def test_a_list_forgets_what_it_does_not_show(store):
    store.put(SERVICES, child())
    store.put(STATEFUL_SETS, stateful_set())
    store.put(PODS, pod())
    store.keep_only(SERVICES, None, set())
    assert store.children("n", "u").keys() == {("StatefulSet", "r-actors")}
    store.keep_only(STATEFUL_SETS, None, set())
    assert store.children("n", "u") == {}
    assert len(store.pods("n", "u")) == 1
    store.keep_only(PODS, "other", set())
    assert len(store.pods("n", "u")) == 1
    store.keep_only(PODS, "n", set())
    assert store.pods("n", "u") == ()


def test_a_node_that_falls_silent_names_the_runs_on_it_and_heartbeats_do_not(store, told):
    store.put(PODS, pod(node="a"))
    store.put(NODES, node(1))
    told.clear()
    store.put(NODES, node(2))
    assert told == []
    store.put(NODES, node(3, ready="Unknown"))
    assert told == [RUN]


def test_runs_that_wait_for_a_reason_are_found(store):
    waiting = {"conditions": [{"type": "Ready", "reason": "RuntimeNotFound"}]}
    store.put_object("RolloutRun", run(2, status=waiting))
    assert store.index.waiting(("RuntimeNotFound",), "") == [RUN]
    assert store.index.waiting(("RuntimeNotFound",), "other") == []
    assert store.index.waiting(("WaitingForRun",), "n") == []


def test_late_news_of_a_namesake_do_not_replace_the_one_there_is(store):
    store.put_object("RolloutRun", run(9, uid="new"))
    store.put_object("RolloutRun", run(5))
    assert store.find(RUN).uid == "new"
    store.put(SERVICES, child(9, uid="new"))
    store.put(SERVICES, child(5))
    assert store.children("n", "u")["Service", "svc"].uid == "new"


def test_a_list_does_not_forget_what_we_have_made_since(store):
    store.put(SERVICES, child(7), notify=False)
    store.keep_only(SERVICES, None, set(), 6)
    assert ("Service", "svc") in store.children("n", "u")
    store.keep_only(SERVICES, None, set(), 7)
    assert store.children("n", "u") == {}
