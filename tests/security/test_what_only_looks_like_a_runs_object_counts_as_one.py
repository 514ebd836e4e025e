"""The attacker writes objects with a victim's labels, UID and owner, in the victim's namespace or in another."""

from dataclasses import replace

import pytest
from worlds import World

from rollout_api import names
from rollout_operator.controller.queue import Key
from rollout_operator.kube.resources import CONFIG_MAPS, PODS, STATEFUL_SETS
from rollout_operator.kueue.resources import WORKLOADS
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.plan.attempts import current_attempt
from rollout_operator.run.plan.plan import plan_run
from rollout_operator.run.queue.keeper import is_pod_of

UID = "uid-0001"
LABELS = {
    names.LABEL_RUN: "run",
    names.LABEL_RUN_UID: UID,
    names.LABEL_ATTEMPT: "1",
    names.LABEL_ROLE: "actor",
    names.LABEL_MANAGED_BY: names.MANAGER_CHILDREN,
}
THE_RUN = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "name": "run",
    "uid": UID,
    "controller": True,
}
THE_SET = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "name": "run-actors",
    "uid": "set",
    "controller": True,
}
SAYS = "SpecError: said by a stranger"
ENDED = {"exitCode": 2, "reason": "Error", "message": SAYS}


def build(name, namespace, owner, **labels):
    meta = {
        "namespace": namespace,
        "name": name,
        "uid": f"{namespace}/{name}",
        "resourceVersion": "5",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": LABELS | labels,
    }
    return {"metadata": meta | ({"ownerReferences": [owner]} if owner else {})}


def failed_pod(namespace, owner):
    status = {"name": "actor", "restartCount": 1, "state": {"terminated": ENDED}}
    pod = build("run-actors-0", namespace, owner)
    return pod | {"status": {"phase": "Failed", "containerStatuses": [status]}}


@pytest.fixture
def told():
    return []


@pytest.fixture
def store(told):
    made = RunStore(told.append)
    meta = {"name": "run", "namespace": "ns", "uid": UID, "resourceVersion": "1"}
    made.put_object("RolloutRun", {"metadata": meta, "spec": {}})
    work = build("run-actors", "ns", THE_RUN)
    work["metadata"]["uid"] = "set"
    made.put(STATEFUL_SETS, work | {"spec": {"replicas": 1, "template": {"metadata": {}}}})
    told.clear()
    return made


FOREIGN = {
    "in another namespace": failed_pod("evil", THE_SET),
    "without an owner": failed_pod("ns", None),
    "of another StatefulSet": failed_pod("ns", THE_SET | {"uid": "mine"}),
    "of a kind of another group": failed_pod("ns", THE_SET | {"apiVersion": "evil.dev/v1"}),
    "that the StatefulSet does not control": failed_pod("ns", THE_SET | {"controller": False}),
}


@pytest.mark.parametrize("pod", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_pod_of_mine_ends_the_run_of_another(store, pod):
    world = World()
    world.settle()
    store.put(PODS, pod)
    seen = world.observe()
    seen = replace(seen, pods=(*seen.pods, *store.pods("ns", UID)))
    plan = plan_run(seen, world.now)
    assert store.pods("ns", UID) == ()
    assert SAYS not in str(plan.status)


def test_a_pod_of_the_runs_own_statefulset_counts_until_it_is_gone(store):
    mine = failed_pod("ns", THE_SET)
    store.put(PODS, mine)
    assert len(store.pods("ns", UID)) == 1
    store.keep_only(STATEFUL_SETS, None, set())
    assert len(store.pods("ns", UID)) == 1, "it terminates, and is still there"
    store.drop(PODS, mine)
    assert store.pods("ns", UID) == ()


def test_a_configmap_of_mine_is_the_record_of_a_run_in_another_namespace(store):
    world = World()
    world.settle()
    record = build("run-0000000000", "evil", THE_RUN, **{names.LABEL_ATTEMPT: "99"})
    record["metadata"]["annotations"] = {names.ANNOTATION_CHILDREN: "Role/loot"}
    store.put(CONFIG_MAPS, record)
    seen = world.observe()
    seen = replace(seen, children={**seen.children, **store.children("ns", UID)})
    assert current_attempt(seen) == 1


def test_my_child_hides_the_childs_namesake_in_another_namespace(store):
    mine = build("run-actors", "evil", THE_RUN)
    mine["metadata"]["resourceVersion"] = "99"
    spec = {"replicas": 400, "template": {"metadata": {}}}
    store.put(STATEFUL_SETS, mine | {"spec": spec})
    assert store.children("ns", UID)["StatefulSet", "run-actors"].workload.replicas == 1


def test_my_owner_is_a_kind_of_the_same_name_in_my_own_group(store):
    service = build("x", "ns", THE_RUN | {"apiVersion": "evil.dev/v1"})
    store.put(CONFIG_MAPS, service)
    assert ("ConfigMap", "x") not in store.children("ns", UID)


def test_my_objects_keep_the_operator_busy_with_a_run_in_another_namespace(store, told):
    store.put(CONFIG_MAPS, build("x", "evil", THE_RUN))
    store.put(PODS, failed_pod("evil", THE_SET))
    assert told == []


@pytest.mark.parametrize("owner", [THE_RUN | {"uid": "other"}, None])
def test_my_workload_is_the_quota_of_another_run(store, owner):
    store.put(WORKLOADS, build("w", "ns", owner) | {"spec": {"queueName": "mine"}})
    assert store.quota("ns", UID) is None


def test_my_workload_replaces_the_quota_of_a_run_in_another_namespace(store):
    store.put(WORKLOADS, build("w", "ns", THE_RUN) | {"spec": {"queueName": "theirs"}})
    theirs = build("w", "evil", THE_RUN)
    theirs["metadata"]["resourceVersion"] = "9"
    store.put(WORKLOADS, theirs | {"spec": {"queueName": "mine"}})
    assert store.quota("ns", UID).queue == "theirs"
    assert [
        one.queue for one in store.quotas_of(Key(namespace="ns", name="run", kind="RolloutRun"))
    ] == ["theirs"]


def test_my_pod_with_a_runs_labels_holds_its_quota_for_ever():
    assert is_pod_of("run", failed_pod("ns", THE_SET))
    assert not is_pod_of("run", failed_pod("ns", None))
    assert not is_pod_of("run", failed_pod("ns", THE_SET | {"name": "mine"}))
