"""The attacker has `edit` in one namespace and writes a ConfigMap that looks like a run attempt's record."""

import base64
import gzip
import json
import resource
import zlib
from dataclasses import replace

import pytest
from cluster_calls import UID, ApiServer, build_applier, look
from worlds import BEGIN, RING, SPEC, World, build_inputs

from rollout_api import names
from rollout_operator.errors import FieldConflict, RecordUnverified
from rollout_operator.kube.resources import CONFIG_MAPS
from rollout_operator.run.attempt import (
    CHILDREN_BYTES_MAX,
    read_record,
    render_record,
    sign_record,
    unpack,
)
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.plan.plan import plan_run
from rollout_operator.signing import CHILDREN_FILE, KEY_BYTES, Keyring

LOOT = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "loot", "namespace": "kube-system", "labels": {}, "annotations": {}},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
    "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "mallory"}],
}
FINISHED = {
    "type": "Finished",
    "status": "True",
    "reason": "Succeeded",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
OTHER = Keyring(current=b"o" * KEY_BYTES)


def pack(children):
    return base64.b64encode(gzip.compress(json.dumps(children).encode())).decode()


def live(manifest, version="7"):
    """A manifest as the API server gives it back."""
    meta = manifest["metadata"]
    return {**manifest, "metadata": {**meta, "uid": meta["name"], "resourceVersion": version}}


def genuine(ring=RING, **inputs):
    return live(
        sign_record(render_record(replace(build_inputs(), generation=1, **inputs)), ring).config_map
    )


def forged():
    """With everything that a tenant can know, and no key."""
    record = genuine()
    record["binaryData"] = {CHILDREN_FILE: pack([LOOT])}
    record["metadata"]["annotations"] |= {names.ANNOTATION_CHILDREN: "RoleBinding/loot"}
    return record


def changed(path, value):
    record = genuine()
    place = record
    for name in path[:-1]:
        place[name] = dict(place[name])
        place = place[name]
    place[path[-1]] = value
    return record


LIES = {
    "a record without a signature": changed(
        ("metadata", "annotations", names.ANNOTATION_SIGNATURE), ""
    ),
    "other children": forged(),
    "another order": changed(("data", "order.json"), "{}"),
    "more allowances": changed(("data", "allowances.json"), '{"host_network": true}'),
    "another attempt": changed(("metadata", "labels", names.LABEL_ATTEMPT), "99"),
    "another generation": changed(("metadata", "annotations", names.ANNOTATION_GENERATION), "99"),
    "a longer list": changed(("metadata", "annotations", names.ANNOTATION_CHILDREN), "Role/loot"),
    "another name": changed(("metadata", "name"), "run-ffffffffff"),
    "another namespace": changed(("metadata", "namespace"), "mine"),
    "another run": changed(
        ("metadata", "ownerReferences"),
        [
            {
                "apiVersion": "rollout.dev/v1alpha1",
                "kind": "RolloutRun",
                "name": "mine",
                "uid": "mine",
                "controller": True,
            }
        ],
    ),
    "a key of mine": genuine(OTHER),
}


@pytest.mark.parametrize("record", LIES.values(), ids=LIES.keys())
def test_what_i_changed_in_a_record_is_read(record):
    with pytest.raises(RecordUnverified):
        read_record(record, RING)


def test_what_the_operator_made_is_read():
    assert read_record(genuine(), RING).attempt == 1


async def start(store, server, **seen):
    observed = look(store, **seen)
    plan = plan_run(observed, BEGIN)
    applier = build_applier(server, store)
    record = render_record(replace(build_inputs(), generation=1))
    applier._records[UID, 1] = record
    await applier.ensure(observed, plan.wanted, build_inputs, BEGIN)
    return plan


async def test_my_record_is_applied_when_the_run_starts():
    store, record = RunStore(), forged()
    record["metadata"] |= {"name": "run-0000000000", "uid": "forged"}
    store.put(CONFIG_MAPS, record)
    server = ApiServer(record)
    plan = await start(store, server)
    assert plan.wanted.record is None
    assert not [path for path in server.paths() if "/namespaces/ns/" not in path]
    assert not [path for path in server.paths() if path.endswith("/loot")]
    verbs = [verb for verb, path, _ in server.written if path.endswith("/run-0000000000")]
    assert verbs == ["delete"], "what is no record of ours, and controlled by the run, goes"


async def test_my_record_has_the_name_that_the_operator_will_choose():
    record = genuine(OTHER)
    store, server = RunStore(), ApiServer(record)
    with pytest.raises(FieldConflict, match="was not made by this operator"):
        await start(store, server)
    assert not [path for path in server.paths() if "loot" in path or "rolebindings" in path]


async def test_my_object_has_the_name_of_a_child_and_is_adopted():
    mine = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {
            "name": "run-coordinator",
            "namespace": "ns",
            "uid": "x",
            "resourceVersion": "3",
        },
    }
    store, server = RunStore(), ApiServer(mine)
    with pytest.raises(FieldConflict, match="ServiceAccount run-coordinator exists and is not"):
        await start(store, server)
    assert server.objects["ServiceAccount", "run-coordinator"] is mine


async def test_my_attempt_makes_the_run_begin_anew():
    store, record = RunStore(), changed(("metadata", "labels", names.LABEL_ATTEMPT), "99")
    record["metadata"] |= {"name": "run-0000000000", "uid": "forged"}
    store.put(CONFIG_MAPS, genuine())
    store.put(CONFIG_MAPS, record)
    plan = plan_run(look(store), BEGIN)
    assert (plan.wanted.attempt, plan.wanted.record) == (1, genuine()["metadata"]["name"])


async def test_i_swap_the_record_between_the_look_and_the_write():
    store, server = RunStore(), ApiServer(forged())
    store.put(CONFIG_MAPS, genuine())
    observed = look(store, {"attempt": 1})
    plan = plan_run(observed, BEGIN)
    with pytest.raises(RecordUnverified):
        await build_applier(server, store).ensure(observed, plan.wanted, build_inputs, BEGIN)
    assert not [path for path in server.paths() if "loot" in path or "rolebindings" in path]


# -- a key that is lost, or another one -----------------------------------------------------------


def conditions(plan):
    return {one["type"]: one for one in plan.status["conditions"]}


def test_a_living_run_whose_record_does_not_verify_says_so_and_keeps_its_pods():
    store = RunStore()
    store.put(CONFIG_MAPS, genuine())
    plan = plan_run(look(store, {"attempt": 1}, OTHER), BEGIN)
    found = conditions(plan)
    assert found["Stalled"]["reason"] == found["Ready"]["reason"] == "RecordUnverified"
    assert genuine()["metadata"]["name"] in found["Ready"]["message"]
    assert (plan.wanted, dict(plan.lower), plan.remove_children) == (None, {}, False)


def test_a_person_resumes_it_as_a_new_attempt_with_a_new_record():
    store = RunStore()
    store.put(CONFIG_MAPS, genuine())
    suspended = plan_run(look(store, {"attempt": 1}, OTHER, suspend=True), BEGIN)
    assert conditions(suspended)["Suspended"]["status"] == "True"
    status = json.loads(json.dumps(suspended.status))
    resumed = plan_run(look(store, status, OTHER), BEGIN)
    assert (resumed.wanted.attempt, resumed.wanted.record) == (2, None)


def test_a_finished_run_lets_its_pods_go_though_nothing_says_what_they_are():
    store = RunStore()
    store.put(CONFIG_MAPS, genuine())
    world = World()
    world.settle()
    status = {**world.status, "conditions": [dict(FINISHED)]}
    seen = look(store, status, OTHER, pods=tuple(world.pods.values()))
    workloads = {place: one for place, one in world.children().items() if place[0] != "ConfigMap"}
    plan = plan_run(replace(seen, children=workloads), world.now)
    assert {role: live.replicas for role, live in plan.lower.items()} == {
        "coordinator": 1,
        "learner": 0,
        "actor": 0,
    }


async def test_what_the_previous_key_signed_holds_and_is_signed_anew():
    record = genuine()
    store, server = RunStore(), ApiServer(record)
    store.put(CONFIG_MAPS, record)
    ring = Keyring(current=OTHER.current, previous=RING.current)
    observed = look(store, {"attempt": 1}, ring)
    assert observed.unverified == ()
    child = observed.children["ConfigMap", record["metadata"]["name"]]
    await build_applier(server, store, ring)._sign_again(child)
    assert look(store, {"attempt": 1}, OTHER).unverified == ()


# -- bytes ------------------------------------------------------------------------------------------


def test_my_bomb_unpacks_to_all_the_memory():
    bomb = gzip.compress(b"[" + b" " * (CHILDREN_BYTES_MAX + 1) + b"]", 9)
    with pytest.raises(ValueError, match=f"at most {CHILDREN_BYTES_MAX} bytes"):
        unpack(bomb)


def test_a_bound_holds_while_bytes_come_out():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(b" " * (1 << 20)) for _ in range(256)) + packer.flush()
    with pytest.raises(ValueError, match="expected children"):
        unpack(bomb)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < 4 * CHILDREN_BYTES_MAX


def test_half_an_archive_is_refused():
    with pytest.raises(ValueError, match="all of them"):
        unpack(gzip.compress(b"[1, 2, 3]" * 100)[:-9])


def test_a_spec_of_nothing_particular_has_nothing_allowed():
    record = read_record(genuine(), RING)
    assert (record.allowances.host_paths, record.allowances.host_network) == ((), False)
    assert SPEC["model"]
