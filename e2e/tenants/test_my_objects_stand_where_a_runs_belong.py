"""The attacker's objects have the names of a run's, or its labels, UID and owner, in the victim's namespace or in another."""

import pytest
from operators import eventually
from tenant import RUN

from rollout_api import names

pytestmark = pytest.mark.control_plane
RBAC = "rbac.authorization.k8s.io"
SAID = "SpecError: said by a stranger"
STRANGERS = {
    "ServiceAccount": ("second-actor", {}),
    "Secret": ("second-tls", {"stringData": {"ca.crt": "mine"}}),
    "ConfigMap": ("second-keys", {"data": {"jwks.json": "{}"}}),
    "Service": (
        "second-coordinator",
        {"spec": {"ports": [{"port": 8443}], "selector": {"a": "b"}}},
    ),
}
VERSIONS = {"Role": f"{RBAC}/v1", "RoleBinding": f"{RBAC}/v1", "Pod": "v1"}


def build(kind, name, **rest):
    meta = {"name": name} | rest.pop("metadata", {})
    return {"apiVersion": VERSIONS.get(kind, "v1"), "kind": kind, "metadata": meta, **rest}


def as_it_was(live):
    """Without what the API server adds by itself."""
    kept = {name: part for name, part in live.items() if name not in {"status", "metadata"}}
    meta = live["metadata"]
    return kept | {"meta": [meta.get(name) for name in ("uid", "labels", "ownerReferences")]}


@pytest.mark.parametrize("kind", STRANGERS)
def test_my_object_is_adopted(mallory, kind):
    name, rest = STRANGERS[kind]
    mine = mallory.me.create(build(kind, name, **rest))
    assert mine.done, mine.words
    mallory.make("second")
    said = mallory.world.wait_for("Stalled", "True", "FieldConflict", name="second")
    assert f"{kind} {name} exists and is not this RolloutRun's" in said["message"]
    found = mallory.kubectl.get(kind.lower(), name)
    assert as_it_was(found) == as_it_was(mine.body)
    assert not mallory.world.pod_uids("coordinator")


def test_a_run_starts_once_my_object_is_out_of_its_way(mallory):
    name, rest = STRANGERS["ServiceAccount"]
    assert mallory.me.create(build("ServiceAccount", name, **rest)).done
    mallory.make("second")
    mallory.world.wait_for("Stalled", "True", "FieldConflict", name="second")
    assert mallory.me.delete("ServiceAccount", name).done
    again = {"spec": {"actors": {"replicas": 2}}}
    assert mallory.me.patch("RolloutRun", "second", again).done, "an edit has it looked at again"
    mallory.world.wait_for("Ready", "True", "Running", name="second")
    assert "ownerReferences" in mallory.kubectl.get("serviceaccount", name)["metadata"]


def test_a_binding_of_an_administrator_is_given_to_my_coordinator(mallory):
    """What stands there gives more than a run's account may have; it stays what it is."""
    administrator = mallory.installation.person(namespace=mallory.namespace)
    subject = {"apiGroup": RBAC, "kind": "User", "name": "somebody"}
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "admin"}
    binding = build("RoleBinding", "second-progress", subjects=[subject], roleRef=role)
    assert administrator.create(binding).done
    mallory.make("second")
    said = mallory.world.wait_for("Stalled", "True", "FieldConflict", name="second")
    assert "RoleBinding second-progress exists and is not this RolloutRun's" in said["message"]
    found = mallory.kubectl.get("rolebinding", "second-progress")
    assert found["subjects"] == [subject]
    assert not mallory.as_pod("coordinator", "second").get("Secret", "x").done


# -- objects that look like another run's ------------------------------------------------------------


def looks_of(alice):
    """Labels and owners of the victim's pods and records, as the administrator sees them."""
    (pod,) = alice.kubectl.get("pods", "-l", "rollout.dev/role=learner")["items"]
    record = alice.record()
    return pod["metadata"], record["metadata"]


def unblocked(owners):
    return [one | {"blockOwnerDeletion": False} for one in owners]


def fake_pod(name, meta, *, owned):
    """``owned``: by objects that are not in my namespace, for which the garbage collector takes it away soon."""
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "learner", "image": "x", "securityContext": security}
    owners = unblocked(meta["ownerReferences"]) if owned else []
    looks = {"labels": meta["labels"], "ownerReferences": owners}
    return build("Pod", name, metadata=looks, spec={"containers": [container]})


def test_my_pods_and_records_are_those_of_alices_run(mallory, alice):
    """In my namespace, with her run's labels, UID and owners: a pod that fails for good, an attempt that overtakes hers."""
    pod, record = looks_of(alice)
    owners = unblocked(record["ownerReferences"])
    marks = {names.LABEL_ATTEMPT: "99"}
    looks = {name: record[name] for name in ("labels", "annotations")}
    looks = looks | {"labels": looks["labels"] | marks, "ownerReferences": owners}
    assert mallory.me.create(build("ConfigMap", f"{RUN}-0000000000", metadata=looks)).done
    for name, owned in ((f"{RUN}-learner-0", True), (f"{RUN}-learner-1", False)):
        made = mallory.me.create(fake_pod(name, pod, owned=owned))
        assert made.done, made.words
    mallory.world.puppets.fail(f"{RUN}-learner-1", "learner", 2, SAID)
    assert_untouched(alice)


def test_my_pod_is_one_of_my_neighbours_statefulset(mallory):
    """In the run's own namespace: a pod that no StatefulSet's controller takes in by its name is nobody's."""
    live = mallory.start()
    (pod,) = mallory.kubectl.get("pods", "-l", "rollout.dev/role=learner")["items"]
    assert mallory.me.create(fake_pod("stranger", pod["metadata"], owned=False)).done
    mallory.world.puppets.fail("stranger", "learner", 2, SAID)
    assert mallory.me.delete("Service", f"{RUN}-learner").done
    eventually(
        lambda: mallory.me.get("Service", f"{RUN}-learner").done, "the run is not looked after"
    )
    now = mallory.world.run()
    assert now["status"]["attempt"] == live["status"]["attempt"]
    assert SAID not in str(now["status"])
    mallory.world.wait_for("Ready", "True", "Running")


def assert_untouched(alice):
    """Her run was looked at since, and says nothing of it."""
    assert alice.me.delete("Service", f"{RUN}-learner").done
    eventually(
        lambda: alice.me.get("Service", f"{RUN}-learner").done, "alice's run is not looked after"
    )
    status = alice.world.run()["status"]
    assert (status["attempt"], SAID in str(status)) == (1, False)
    alice.world.wait_for("Ready", "True", "Running")


@pytest.mark.parametrize("text", ["\u00b2", "9" * 5000], ids=["no digit", "too many digits"])
def test_a_text_of_mine_ends_the_operator(mallory, alice, text):
    _, record = looks_of(alice)
    marks = {names.ANNOTATION_GENERATION: text, names.ANNOTATION_CHILDREN: "a/b"}
    owners = unblocked(record["ownerReferences"])
    looks = {"labels": record["labels"], "annotations": marks, "ownerReferences": owners}
    assert mallory.me.create(build("ConfigMap", "bad", metadata=looks)).done
    mallory.start()


def test_my_field_manager_ends_the_operator(mallory):
    """Fields that nobody can own, said to be the operator's."""
    mallory.start()
    live = mallory.me.get("StatefulSet", f"{RUN}-actors").body
    fields = {'k:{"name":{"a":1}}': {}, 'k:{"resources":"x"}': {"f:name": {}}, "v:[[[]]]": {}}
    pod = {"f:spec": {"f:containers": fields}}
    managed = {
        "manager": names.MANAGER_CHILDREN,
        "operation": "Apply",
        "apiVersion": "apps/v1",
        "fieldsType": "FieldsV1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsV1": {"f:spec": {"f:template": pod}},
    }
    live["metadata"]["managedFields"] = [managed]
    live["metadata"]["labels"]["x"] = "y"
    assert mallory.me.replace(live).done
    assert mallory.me.delete("Service", f"{RUN}-learner").done
    eventually(
        lambda: mallory.me.get("Service", f"{RUN}-learner").done, "the run is not looked after"
    )


def test_a_run_of_alice_hands_its_model_to_me(mallory, alice):
    """Runs are named within a namespace: another one has no way to be said."""
    for reference in (
        {"name": RUN, "namespace": alice.namespace},
        {"name": f"{alice.namespace}/{RUN}"},
        {"name": f"../{alice.namespace}/{RUN}"},
    ):
        spec = {"model": {"uri": None, "fromRun": reference}}
        answer = mallory.try_to_make("thief", spec)
        if answer.done:
            said = mallory.world.wait_for("Ready", "False", "ReferenceNotFound", name="thief")
            assert "there is no such run in this namespace" in said["message"]
            assert "namespace" not in mallory.world.run("thief")["spec"]["model"]["fromRun"]
        else:
            assert "spec.model.fromRun.name" in answer.words
