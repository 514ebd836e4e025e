"""The attacker makes thousands of runs in one namespace: few are started at once, the others wait their turn and say so."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import PLATFORM, SPEC

from rollout_api import names
from rollout_operator.controller.queue import Key
from rollout_operator.kube.resources import CONFIG_MAPS
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.observe import Observer
from rollout_operator.run.queue.asking import Asker
from rollout_operator.signing import Keyring

MOST = 3
WAITS = {"conditions": [{"type": "Ready", "status": "False", "reason": "TooManyRuns"}]}
STARTED = {"attempt": 1, "conditions": [{"type": "Ready", "status": "True", "reason": "Running"}]}
OVER = {
    "attempt": 1,
    "conditions": [{"type": "Finished", "status": "True", "reason": "Succeeded"}],
}
SUSPENDED = {
    "attempt": 1,
    "conditions": [{"type": "Suspended", "status": "True", "reason": "Suspended"}],
}
HELD = {"conditions": [{"type": "Ready", "status": "False", "reason": "ReferenceNotFound"}]}


class Cluster:
    """A store with runs of one namespace or more, and who was woken."""

    def __init__(self, most=MOST):
        self.woken, self.version = [], 0
        self.store = RunStore(self.woken.append)
        self.observer = Observer(
            client=None,
            store=self.store,
            platform=lambda: PLATFORM,
            asker=Asker(client=None, served=lambda: False),
            runs_per_namespace=most,
            keyring=Keyring,
        )
        runtime = {"name": "default", "uid": "runtime", "resourceVersion": "1"}
        spec = {"allowedNamespaces": {"from": "All"}}
        self.store.put_object("ClusterRolloutRuntime", {"metadata": runtime, "spec": spec})
        self.woken.clear()

    def put(self, number, status=None, namespace="crowd", spec=SPEC):
        self.version += 1
        meta = {
            "name": f"r{number}",
            "namespace": namespace,
            "uid": f"{namespace}-{number}",
            "resourceVersion": str(self.version),
            "generation": 1,
            "creationTimestamp": f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}Z",
        }
        live = {"metadata": meta, "spec": spec, "status": status or {}}
        self.store.put_object("RolloutRun", live, notify=False)
        return self.store.find(Key(namespace=namespace, name=f"r{number}", kind="RolloutRun"))

    def drop(self, number, namespace="crowd"):
        meta = {"name": f"r{number}", "namespace": namespace, "uid": f"{namespace}-{number}"}
        self.store.drop_object("RolloutRun", {"metadata": meta})

    def settle(self, stored):
        return self.store.places.settle(stored, made=self.store.has_begun(stored.key))

    def take(self, stored):
        return self.store.places.take(stored, self.observer.runs_per_namespace)


def test_beyond_the_bound_a_run_waits_and_says_how_many_are_before_it():
    cluster = Cluster()
    for number in range(MOST):
        cluster.put(number, STARTED)
    cluster.put(7, WAITS)
    gate = cluster.take(cluster.put(9))
    assert (gate.reason, gate.stalled) == ("TooManyRuns", False)
    assert "3 runs of namespace crowd are started, and 3 may be" in gate.message
    assert "; 1 of those that wait" in gate.message
    assert cluster.take(cluster.put(0, namespace="quiet")) is None


def test_runs_that_are_looked_at_in_the_same_moment_take_no_place_twice():
    cluster = Cluster()
    taken = [cluster.take(cluster.put(number)) for number in range(10)]
    assert taken[:MOST] == [None] * MOST
    assert all(gate is not None for gate in taken[MOST:])


def test_the_oldest_goes_first_and_a_younger_one_does_not_overtake_it():
    cluster = Cluster()
    for number in range(MOST):
        cluster.put(number, STARTED)
    old, young = cluster.put(10, WAITS), cluster.put(20, WAITS)
    cluster.put(0, OVER)
    assert cluster.woken == [Key(namespace="crowd", name="r10", kind="RolloutRun")]
    assert cluster.take(young) is not None
    assert cluster.take(cluster.put(30)) is not None
    assert cluster.take(old) is None


def test_a_run_that_gives_its_place_back_wakes_the_one_that_has_waited_longest():
    for give_back in (lambda c: c.put(0, OVER), lambda c: c.put(0, SUSPENDED), lambda c: c.drop(0)):
        cluster = Cluster()
        for number in range(MOST):
            cluster.put(number, STARTED)
        cluster.put(5, WAITS)
        give_back(cluster)
        assert Key(namespace="crowd", name="r5", kind="RolloutRun") in cluster.woken


def test_a_run_that_no_longer_waits_for_a_place_wakes_the_next():
    cluster = Cluster()
    cluster.put(5, WAITS)
    cluster.put(6, WAITS)
    cluster.put(5, HELD)
    assert cluster.woken == [Key(namespace="crowd", name="r6", kind="RolloutRun")]


def test_a_start_that_fails_gives_the_place_to_the_next():
    cluster = Cluster(most=1)
    first, second = cluster.put(1), cluster.put(2, WAITS)
    assert cluster.take(first) is None
    assert cluster.take(second) is not None
    assert cluster.store.places.settle(first) == second.key
    assert cluster.store.places.settle(first) is None
    assert cluster.take(second) is None
    cluster.put(2, STARTED)
    assert cluster.store.places.settle(second) is None


def record_of(stored, attempt=1):
    owner = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun", "name": stored.key.name}
    meta = {
        "name": f"{stored.key.name}-{attempt:010d}",
        "namespace": stored.key.namespace,
        "uid": f"{stored.uid}-record-{attempt}",
        "resourceVersion": "7",
        "labels": {names.LABEL_RUN: stored.key.name, names.LABEL_ATTEMPT: str(attempt)},
        "annotations": {names.ANNOTATION_CHILDREN: "Service/x", names.ANNOTATION_GENERATION: "1"},
        "ownerReferences": [owner | {"uid": stored.uid, "controller": True}],
    }
    return {"kind": "ConfigMap", "metadata": meta}


def test_a_start_that_fails_half_way_keeps_its_place():
    """Its record is there: the next look goes on with it, whoever else has been started since."""
    cluster = Cluster(most=1)
    first, second = cluster.put(1), cluster.put(2, WAITS)
    assert cluster.take(first) is None
    cluster.store.put(CONFIG_MAPS, record_of(first))
    assert cluster.settle(first) is None
    assert cluster.take(second) is not None
    started = cluster.put(1, STARTED)
    assert cluster.settle(started) is None
    assert cluster.take(second) is not None
    cluster.put(1, OVER)
    assert cluster.take(second) is None


async def test_an_operator_that_is_started_anew_counts_what_the_one_before_left_half_way():
    cluster = Cluster(most=1)
    first, second = cluster.put(1), cluster.put(2, WAITS)
    cluster.store.put(CONFIG_MAPS, record_of(first))
    believed = cluster.store.children("crowd", first.uid)
    observed = replace(cluster.observer.look(first), unverified=(), children=believed)
    assert (await cluster.observer.check(observed, first)).gate is None
    assert cluster.take(second) is not None


@pytest.mark.parametrize("go", ["drop", "suspend"])
def test_a_start_that_failed_half_way_and_is_given_up_gives_its_place_back(go):
    cluster = Cluster(most=1)
    first, second = cluster.put(1), cluster.put(2, WAITS)
    assert cluster.take(first) is None
    cluster.store.put(CONFIG_MAPS, record_of(first))
    assert cluster.settle(first) is None
    cluster.woken.clear()
    if go == "drop":
        cluster.drop(1)
        assert second.key in cluster.woken
    else:
        suspended = cluster.put(1, spec={**SPEC, "suspend": True})
        assert cluster.settle(suspended) == second.key
    assert cluster.take(second) is None


def test_the_record_of_an_attempt_that_is_over_keeps_no_place():
    cluster = Cluster(most=1)
    first, second = cluster.put(1, SUSPENDED), cluster.put(2, WAITS)
    cluster.store.put(CONFIG_MAPS, record_of(first))
    assert cluster.take(first) is None
    assert cluster.settle(first) == second.key


def test_without_a_bound_every_run_has_a_place():
    cluster = Cluster(most=0)
    assert {cluster.take(cluster.put(number)) for number in range(200)} == {None}


async def test_what_else_stands_in_the_way_is_said_first_and_takes_no_place():
    cluster = Cluster(most=1)
    waits = {**SPEC, "model": {"fromRun": {"name": "nobody"}}}
    stored = cluster.put(1)
    observed = cluster.observer.look(stored)
    gate = (await cluster.observer.check(observed, stored_with(stored, waits))).gate
    assert gate.reason == "ReferenceNotFound"
    assert cluster.take(cluster.put(2)) is None


def stored_with(stored, spec):
    return replace(stored, spec=json.dumps(spec).encode())


STATES = st.sampled_from([None, WAITS, STARTED, OVER, SUSPENDED, HELD])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from(["put", "drop", "start"]), STATES), max_size=30
    )
)
def test_however_runs_come_and_go_no_more_than_the_bound_are_started(steps):
    cluster = Cluster()
    for number, verb, status in steps:
        key = Key(namespace="crowd", name=f"r{number}", kind="RolloutRun")
        stored = cluster.store.find(key)
        if verb == "put" and (status is not STARTED or stored is None or stored.facts.started):
            cluster.put(number, status if status is not STARTED else None)
        elif verb == "start" and stored is not None and cluster.take(stored) is None:
            cluster.put(number, STARTED)
            cluster.store.places.settle(stored)
        elif verb == "drop" and stored is not None:
            cluster.drop(number)
            cluster.store._gone.clear()  # so that its name may come again in this test
        started = [one for one in cluster.store.objects() if one.facts.started]
        assert len(started) <= MOST


def test_a_place_that_is_given_back_while_a_run_is_being_told_to_wait_is_not_lost():
    cluster = Cluster(most=1)
    cluster.put(0, STARTED)
    told = cluster.put(5)
    assert cluster.take(told) is not None
    cluster.put(0, OVER)
    assert cluster.woken == [told.key]
    cluster.put(5, WAITS)
    cluster.store.places.settle(told)
    assert cluster.take(told) is None


def test_a_run_that_was_told_to_wait_and_waits_for_something_else_now_holds_up_nobody():
    cluster = Cluster(most=1)
    cluster.put(0, STARTED)
    told = cluster.put(5)
    assert cluster.take(told) is not None
    cluster.put(5, HELD)
    cluster.store.places.settle(told)
    cluster.put(9, WAITS)
    cluster.put(0, OVER)
    assert cluster.woken[-1] == Key(namespace="crowd", name="r9", kind="RolloutRun")
