"""The attacker may edit one namespace: forged, swapped and replayed records around a run, on a real API server."""

import base64
import copy
import gzip
import json
import secrets
import zlib
from itertools import count

import pytest
from operators import eventually
from tenant import RUN

from charts import NAMESPACE
from rollout_api import names
from rollout_operator.signing import (
    CHILDREN_FILE,
    KEY_BYTES,
    SECRET_NAME,
    Keyring,
    key_id,
    record_content,
)

pytestmark = pytest.mark.control_plane
RBAC = "rbac.authorization.k8s.io"
LOOT = "loot"


def binding(namespace, user):
    """Every right in a namespace."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": LOOT, "namespace": namespace, "labels": {}, "annotations": {}},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }


def pods_of_the_node(namespace):
    """A pod that owns its node."""
    mount = {"name": "h", "mountPath": "/h"}
    container = {"name": "c", "image": "evil", "securityContext": {"privileged": True}}
    pod = {
        "hostPID": True,
        "volumes": [{"name": "h", "hostPath": {"path": "/"}}],
        "containers": [container | {"volumeMounts": [mount]}],
    }
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod}
    selector = {"matchLabels": {"a": "b"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": LOOT, "namespace": namespace, "labels": {}, "annotations": {}},
        "spec": {"replicas": 1, "serviceName": "x", "selector": selector, "template": template},
    }


def pack(children):
    return base64.b64encode(gzip.compress(json.dumps(children).encode())).decode()


def bomb():
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join(packer.compress(b" " * (1 << 20)) for _ in range(400)) + packer.flush()
    return base64.b64encode(packed).decode()


def forged(record, name, children, *, signed=False, **labels):
    """All that a tenant can know of a genuine record, with children of their own; ``signed`` by a key of their own."""
    made = copy.deepcopy(record)
    owner = record["metadata"]["ownerReferences"][0] | {"blockOwnerDeletion": False}
    annotations = record["metadata"]["annotations"]
    listed = f"RoleBinding/{LOOT},StatefulSet/{LOOT}"
    made["metadata"] = {
        "name": name,
        "namespace": record["metadata"]["namespace"],
        "labels": record["metadata"]["labels"] | labels,
        "annotations": annotations | {names.ANNOTATION_CHILDREN: listed},
        "ownerReferences": [owner],
    }
    made["binaryData"] = {CHILDREN_FILE: children}
    if signed:
        key_id = annotations[names.ANNOTATION_SIGNATURE].partition(":")[0]
        code = Keyring(current=b"m" * KEY_BYTES).sign(record_content(made)).partition(":")[2]
        made["metadata"]["annotations"][names.ANNOTATION_SIGNATURE] = f"{key_id}:{code}"
    return made


def lies(record, other, alice):
    """Records of mine, by what I wish."""
    next_one = {names.LABEL_ATTEMPT: "99"}
    mine = record["metadata"]["namespace"]
    of_another = copy.deepcopy(other)
    of_another["metadata"] |= {"ownerReferences": record["metadata"]["ownerReferences"]}
    of_another["metadata"]["labels"] |= {names.LABEL_RUN: RUN} | next_one
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    meta = {name: of_another["metadata"][name] for name in kept}
    meta["ownerReferences"][0] = meta["ownerReferences"][0] | {"blockOwnerDeletion": False}
    return {
        "the cluster is mine": forged(
            record, f"{RUN}-0000000000", pack([binding("kube-system", "mallory")]), **next_one
        ),
        "my namespace is all mine": forged(
            record, f"{RUN}-0000000001", pack([binding(mine, "mallory")]), **next_one
        ),
        "alice's namespace is mine": forged(
            record, f"{RUN}-0000000002", pack([pods_of_the_node(alice)])
        ),
        "I signed it myself": forged(
            record, f"{RUN}-0000000003", pack([pods_of_the_node(mine)]), signed=True, **next_one
        ),
        "all its memory is mine": forged(record, f"{RUN}-0000000004", bomb(), **next_one),
        "another run's record": of_another | {"metadata": meta | {"name": f"{RUN}-0000000005"}},
    }


def everywhere(tenant, kind):
    return [one["metadata"]["name"] for one in json.loads(tenant.kubectl.raw(kind))["items"]]


def test_forged_records_are_applied(mallory, alice):
    mallory.start()
    mallory.start("other")
    given = lies(mallory.record(), mallory.record("other"), alice.namespace)
    for wish, record in given.items():
        answer = mallory.me.create(record)
        assert answer.done, (wish, answer.words)
    assert mallory.me.delete("Service", f"{RUN}-learner").done
    eventually(
        lambda: mallory.me.get("Service", f"{RUN}-learner").done, "the run is not looked after"
    )
    left = {one["metadata"]["name"] for one in given.values()}
    eventually(
        lambda: not any(mallory.me.get("ConfigMap", name).done for name in left),
        "what is no record of ours, and controlled by the run, goes",
    )
    assert LOOT not in everywhere(mallory, f"/apis/{RBAC}/v1/rolebindings")
    assert LOOT not in everywhere(mallory, "/apis/apps/v1/statefulsets")
    mallory.world.wait_for("Ready", "True", "Running")
    assert mallory.world.run()["status"]["attempt"] == 1


def test_a_forged_record_is_there_before_the_run(mallory, alice):
    """The run exists and waits; its first record is mine."""
    loot = [binding("kube-system", "mallory"), pods_of_the_node(alice.namespace)]
    mallory.start("other")
    waits = mallory.make(spec={"suspend": True}).body["metadata"]
    record = forged(mallory.record("other"), f"{RUN}-0000000000", pack(loot))
    record["metadata"]["labels"] |= {names.LABEL_RUN: RUN, names.LABEL_RUN_UID: waits["uid"]}
    record["metadata"]["ownerReferences"][0] |= {"name": RUN, "uid": waits["uid"]}
    assert mallory.me.create(record).done
    assert mallory.me.patch("RolloutRun", RUN, {"spec": {"suspend": False}}).done
    mallory.world.wait_for("Ready", "True", "Running")
    assert mallory.record()["metadata"]["name"] != f"{RUN}-0000000000"
    assert LOOT not in everywhere(mallory, f"/apis/{RBAC}/v1/rolebindings")
    assert LOOT not in everywhere(mallory, "/apis/apps/v1/statefulsets")


def changed_annotation(mallory, record):
    body = {"metadata": {"annotations": {names.ANNOTATION_CHILDREN: "Role/loot"}}}
    assert mallory.me.patch("ConfigMap", record["metadata"]["name"], body).done


def swapped_bytes(mallory, record):
    """The genuine record is immutable; another one has its name, its signature and other bytes."""
    other = forged(
        record, record["metadata"]["name"], pack([binding(mallory.namespace, "mallory")])
    )
    other["metadata"]["annotations"] = record["metadata"]["annotations"]
    put_in_its_place(mallory, other)


def put_in_its_place(mallory, other):
    name = other["metadata"]["name"]
    assert mallory.me.delete("ConfigMap", name).done
    answer = mallory.me.create(other)
    if not answer.done:  # the operator made its own again in between
        assert mallory.me.delete("ConfigMap", name).done
        assert mallory.me.create(other).done


@pytest.mark.parametrize("change", [changed_annotation, swapped_bytes])
def test_a_record_that_was_changed_is_believed(mallory, change):
    mallory.start()
    pods = mallory.world.pod_uids("actor")
    record = mallory.record()
    change(mallory, record)
    said = mallory.world.wait_for("Stalled", "True", "RecordUnverified")
    assert record["metadata"]["name"] in said["message"]
    assert mallory.world.pod_uids("actor") == pods
    assert LOOT not in everywhere(mallory, f"/apis/{RBAC}/v1/rolebindings")
    assert mallory.me.patch("RolloutRun", RUN, {"spec": {"suspend": True}}).done
    mallory.world.wait_for("Suspended", "True")
    assert mallory.world.pod_uids("actor") == set()
    assert mallory.me.patch("RolloutRun", RUN, {"spec": {"suspend": False}}).done
    mallory.world.wait_for("Ready", "True", "Running")
    assert mallory.world.run()["status"]["attempt"] == 2
    assert mallory.record()["metadata"]["name"] != record["metadata"]["name"]


def test_the_key_of_records_is_mine(mallory):
    mallory.start()
    administrator = mallory.installation.person()
    secret = administrator.get("Secret", SECRET_NAME, NAMESPACE)
    assert secret.done
    others = [
        mallory.installation.account(name) for name in ("rollout-webhook", "rollout-certificates")
    ]
    for who in (mallory.me, mallory.as_pod("coordinator"), mallory.as_pod("actor"), *others):
        assert who.get("Secret", SECRET_NAME, NAMESPACE).status == 403, who.user
    key = secret.body["data"]["current"]
    assert key not in mallory.installation.operator.log.read_text()
    assert key not in mallory.kubectl.raw(f"/api/v1/namespaces/{mallory.namespace}/configmaps")


def rotate(tenants, administrator):
    """As the docs say it, and until what the previous key signed is signed anew; the key that signed before."""
    data = administrator.get("Secret", SECRET_NAME, NAMESPACE).body["data"]
    new = secrets.token_bytes(KEY_BYTES)
    keys = {"current": base64.b64encode(new).decode(), "previous": data["current"]}
    assert administrator.patch("Secret", SECRET_NAME, {"data": keys}, namespace=NAMESPACE).done
    turns = count()

    def are_signed_anew():
        """What nobody signed makes the operator look at its keys; an edit, at the run."""
        stray = {names.LABEL_ATTEMPT: "98"}
        for tenant in tenants:
            name = f"{RUN}-{secrets.token_hex(5)}"
            tenant.me.create(forged(tenant.record(), name, pack([]), signed=True, **stray))
            edit = {"spec": {"actors": {"replicas": 1 + next(turns) // len(tenants) % 2}}}
            assert tenant.me.patch("RolloutRun", RUN, edit).done
        return all(signer(tenant.record()) == key_id(new) for tenant in tenants)

    eventually(are_signed_anew, "records are not signed with the new key", every=2.0)
    return base64.b64decode(data["current"])


def signer(record):
    return record["metadata"]["annotations"][names.ANNOTATION_SIGNATURE].partition(":")[0]


def test_a_key_that_was_rotated_out_signs_records(mallory, alice):
    """I have had the key, and it was rotated with overlap, twice: my record is a genuine one's but for its children."""
    mallory.start()
    administrator = mallory.installation.person()
    stolen = rotate((mallory, alice), administrator)
    rotate((mallory, alice), administrator)
    pods, record = mallory.world.pod_uids("learner"), mallory.record()
    lie = forged(record, record["metadata"]["name"], pack([binding(mallory.namespace, "mallory")]))
    signature = Keyring(current=stolen).sign(record_content(lie))
    lie["metadata"]["annotations"][names.ANNOTATION_SIGNATURE] = signature
    put_in_its_place(mallory, lie)
    said = mallory.world.wait_for("Stalled", "True", "RecordUnverified")
    assert record["metadata"]["name"] in said["message"]
    assert mallory.world.pod_uids("learner") == pods
    assert LOOT not in everywhere(mallory, f"/apis/{RBAC}/v1/rolebindings")
