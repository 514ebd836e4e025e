"""The attacker may `edit` one namespace: forged, changed and foreign objects around a run, on a real API server."""

import base64
import gzip
import json

import pytest
from operators import eventually
from stage import World

pytestmark = pytest.mark.control_plane
MALLORY = "mallory"
RBAC = "rbac.authorization.k8s.io"
LOOT = {
    "apiVersion": f"{RBAC}/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "loot", "namespace": "kube-system", "labels": {}, "annotations": {}},
    "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": RBAC, "kind": "User", "name": MALLORY}],
}


@pytest.fixture
def running(world):
    """A run that works, and an editor beside it."""
    world.kubectl("create", "rolebinding", MALLORY, "--clusterrole=edit", f"--user={MALLORY}")
    world.apply()
    world.wait_for("Ready", "True", "Running")
    return world


def as_mallory(world: World, verb, *arguments, manifest=None):
    stdin = json.dumps(manifest) if manifest else ""
    given = ("-f", "-") if manifest else ()
    return world.kubectl(verb, "--as", MALLORY, *arguments, *given, stdin=stdin)


def record_of(world):
    return world.kubectl.get("configmap", world.run()["status"]["configuration"])


def test_a_forged_record_is_applied(running):
    forged = record_of(running)
    meta = forged["metadata"]
    owner = meta["ownerReferences"][0] | {"blockOwnerDeletion": False}
    labels = meta["labels"] | {"rollout.dev/attempt": "99"}
    annotations = meta["annotations"] | {"rollout.dev/children": "RoleBinding/loot"}
    packed = gzip.compress(json.dumps([LOOT]).encode())
    manifest = forged | {
        "metadata": {
            "name": "arithmetic-0000000000",
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "binaryData": {"children.json.gz": base64.b64encode(packed).decode()},
    }
    as_mallory(running, "create", manifest=manifest)
    running.kubectl("delete", "service", "arithmetic-learner")
    eventually(
        lambda: not running.kubectl.attempt("get", "service", "arithmetic-learner").returncode,
        "the run is not looked after",
    )
    found = running.kubectl("get", "rolebindings", "-A", "-o", "name")
    assert "loot" not in found
    assert running.run()["status"]["attempt"] == 1


def test_a_record_that_was_changed_is_believed(running):
    pods = running.pod_uids("actor")
    name = record_of(running)["metadata"]["name"]
    as_mallory(
        running, "annotate", "configmap", name, "rollout.dev/children=Role/loot", "--overwrite"
    )
    running.wait_for("Stalled", "True", "RecordUnverified")
    assert running.pod_uids("actor") == pods
    running.patch({"suspend": True})
    running.wait_for("Suspended", "True")
    assert running.pod_uids("actor") == set()
    running.patch({"suspend": False})
    running.wait_for("Ready", "True", "Running")
    assert running.run()["status"]["attempt"] == 2
    assert record_of(running)["metadata"]["name"] != name


def test_an_object_of_a_childs_name_is_adopted(running):
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "second-actor"}}
    as_mallory(running, "create", manifest=account)
    running.apply("second")
    said = running.wait_for("Stalled", "True", "FieldConflict", name="second")
    assert "ServiceAccount second-actor exists and is not this run's" in said["message"]
    found = running.kubectl.get("serviceaccount", "second-actor")["metadata"]
    assert "ownerReferences" not in found
    running.kubectl("delete", "serviceaccount", "second-actor")
    running.wait_for("Ready", "True", "Running", name="second")


def test_the_key_is_there_and_not_mine(running):
    shown = ("-n", "default", "-o", "name")
    secret = running.kubectl("get", "secret", "rollout-operator-records", *shown)
    assert secret.strip() == "secret/rollout-operator-records"
    may = ("auth", "can-i", "get", "secrets/rollout-operator-records", "-n", "default")
    assert running.kubectl.attempt(*may, "--as", MALLORY).stdout.strip() == "no"
