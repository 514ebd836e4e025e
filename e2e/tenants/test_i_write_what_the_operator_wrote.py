"""The attacker edits a run's status, children and platform objects directly, as themselves and as their run's own pods."""

import pytest
from operators import eventually
from tenant import RUN

from charts import NAMESPACE

pytestmark = pytest.mark.control_plane
READY = {"type": "Ready", "status": "True", "reason": "Mine", "message": "mine"}
STAMPED = READY | {"lastTransitionTime": "2026-01-01T00:00:00Z"}
CHILDREN = {
    "Service": f"{RUN}-coordinator",
    "ServiceAccount": f"{RUN}-actor",
    "StatefulSet": f"{RUN}-actors",
    "NetworkPolicy": f"{RUN}-learner",
    "ConfigMap": f"{RUN}-keys",
    "Secret": f"{RUN}-tls",
}
LIES = {
    "a condition": {"conditions": [STAMPED]},
    "an attempt": {"attempt": 99},
    "a record": {"configuration": "mine"},
    "settings": {"settingsGeneration": 99},
    "a model": {"lastSnapshot": {"name": "x", "step": 1, "modelURI": "pvc://other/x"}},
}


def write_status(who, status, run=RUN, namespace=""):
    return who.patch(
        "RolloutRun", run, {"status": status}, subresource="status", namespace=namespace
    )


def test_i_write_the_status_of_a_run(mallory, alice):
    mallory.start()
    before = mallory.world.run()["status"]
    for lie in (*LIES.values(), {"progress": {"step": 9}}):
        assert write_status(mallory.me, lie).status == 403
        for account in ("default", f"{RUN}-actor", f"{RUN}-learner"):
            stranger = mallory.installation.account(account, mallory.namespace)
            assert write_status(stranger, lie).status == 403
    assert (
        write_status(
            mallory.as_pod("coordinator"), LIES["a condition"], RUN, alice.namespace
        ).status
        == 403
    )
    assert mallory.world.run()["status"] == before


def test_my_coordinator_writes_more_than_progress(mallory):
    """Who may edit a namespace may be any service account there, a run's coordinator too."""
    mallory.start()
    before = mallory.world.run()["status"]
    for wish, lie in LIES.items():
        answer = write_status(mallory.as_pod("coordinator"), lie)
        said = "a run's coordinator writes status.progress and nothing else"
        assert said in answer.words, (wish, answer.words)
    assert mallory.world.run()["status"] == before


def test_my_coordinator_writes_the_progress_of_another_run(mallory):
    mallory.start()
    mallory.start("other")
    progress = {"progress": {"step": 9, "outcome": {"kind": "Failed", "reason": "Mine"}}}
    assert write_status(mallory.as_pod("coordinator"), progress, "other").status == 403
    mallory.world.wait_for("Ready", "True", "Running", "other")


ABSURD = {
    "a step": {"step": 2**62},
    "a text without end": {
        "step": 1,
        "outcome": {"kind": "Failed", "reason": "x", "message": "m" * 900_000},
    },
    "a time": {"step": 1, "stuck": {"worker": f"{RUN}-actor-0", "time": "never", "message": "x"}},
    "a reason": {"step": 1, "outcome": {"kind": "Failed", "reason": "\u001b[31m" + "x" * 5000}},
    "actors": {"step": 1, "actorsWanted": -5},
}


def test_my_coordinator_says_what_cannot_be(mallory):
    """Taken or refused: the run is looked after, and can be suspended."""
    mallory.start()
    for number, progress in enumerate(ABSURD.values()):
        write_status(mallory.as_pod("coordinator"), {"progress": progress})
        wanted = 2 + number % 2
        edit = {"spec": {"actors": {"replicas": wanted}}}
        assert mallory.me.patch("RolloutRun", RUN, edit).done
        eventually(
            lambda wanted=wanted: mallory.world.replicas()[f"{RUN}-actors"] in {0, wanted},
            f"a run with the progress {progress!s:.60} is not looked after",
        )
    assert mallory.me.patch("RolloutRun", RUN, {"spec": {"suspend": True}}).done
    eventually(lambda: not mallory.world.pod_uids("actor"), "it cannot be suspended")


def test_i_delete_what_a_run_is_made_of(mallory):
    mallory.start()
    before = {kind: mallory.me.get(kind, name).body for kind, name in CHILDREN.items()}
    for kind, name in CHILDREN.items():
        assert mallory.me.delete(kind, name).done, kind

    def is_back(kind, name):
        found = mallory.me.get(kind, name)
        return found.done and found.body["metadata"]["uid"] != before[kind]["metadata"]["uid"]

    for kind, name in CHILDREN.items():
        eventually(lambda kind=kind, name=name: is_back(kind, name), f"{kind} {name} is not back")
    mallory.world.wait_for("Ready", "True", "Running")
    assert mallory.world.run()["status"]["attempt"] == 1


SAID = {"spec", "data", "automountServiceAccountToken"}
EDITS = {
    "calls go to my pod": (
        "Service",
        f"{RUN}-coordinator",
        {"spec": {"selector": {"rollout.dev/run": "mine"}}},
    ),
    "everybody may reach it": ("NetworkPolicy", f"{RUN}-learner", {"spec": {"ingress": [{}]}}),
    "it is larger": ("StatefulSet", f"{RUN}-actors", {"spec": {"replicas": 400}}),
    "its account mounts a token": (
        "ServiceAccount",
        f"{RUN}-actor",
        {"automountServiceAccountToken": True},
    ),
    "its keys are mine": ("ConfigMap", f"{RUN}-keys", {"data": {"jwks.json": "{}"}}),
}


def test_my_edits_of_children_stay(mallory):
    mallory.start()

    def said(kind, name):
        live = mallory.me.get(kind, name).body
        return {part: live[part] for part in SAID & live.keys()}

    before = {wish: said(kind, name) for wish, (kind, name, _) in EDITS.items()}
    for wish, (kind, name, edit) in EDITS.items():
        answer = mallory.me.patch(kind, name, edit)
        assert answer.done, (wish, answer.words)
    for wish, (kind, name, _) in EDITS.items():
        eventually(
            lambda wish=wish, kind=kind, name=name: said(kind, name) == before[wish],
            f"{kind} {name} stayed as the editor wrote it",
        )
    mallory.world.wait_for("Ready", "True", "Running")


def test_pods_of_my_run_get_the_node(mallory):
    """What the attacker adds to a StatefulSet is theirs: no pod of it is let in, and the operator writes it no more, by name."""
    mallory.start()
    pods = mallory.world.pod_uids("actor")
    live = mallory.me.get("StatefulSet", f"{RUN}-actors").body
    pod = live["spec"]["template"]["spec"]
    pod["hostPID"] = True
    pod["volumes"].append({"name": "h", "hostPath": {"path": "/"}})
    pod["containers"].append({"name": "x", "image": "x", "securityContext": {"privileged": True}})
    assert mallory.me.replace(live).done
    scaled = {"spec": {"actors": {"replicas": 3}}}
    assert mallory.me.patch("RolloutRun", RUN, scaled).done
    said = mallory.world.wait_for("Stalled", "True")
    assert "rollout-children" in said["message"], said
    found = mallory.kubectl.get("pods", "-l", "rollout.dev/role=actor")["items"]
    assert not any(one["spec"].get("hostPID") for one in found)
    assert {one["metadata"]["uid"] for one in found} <= pods


PLATFORM = {
    "the operator's token": (
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/rollout-operator/token",
    ),
    "the webhook's key": ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/rollout-webhook-tls"),
    "the Lease": (
        "PATCH",
        f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/rollout-operator",
    ),
    "the webhook": (
        "DELETE",
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/rollout-webhook",
    ),
    "the policy": (
        "DELETE",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/rollout-children",
    ),
    "the definitions": (
        "DELETE",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rolloutruns.rollout.dev",
    ),
    "the storage class": ("GET", "/apis/storage.k8s.io/v1/storageclasses/standard"),
}


def test_what_the_platform_owns_is_mine(mallory):
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    bodies = {"POST": request, "PATCH": {}}
    for wish, (method, path) in PLATFORM.items():
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        for who in (mallory.me, mallory.installation.account("default", mallory.namespace)):
            answer = who.send(method, path, bodies.get(method), content=content)
            assert answer.status == 403, (wish, who.user, answer.status)


def test_i_am_the_operator(mallory):
    """Impersonation of accounts is a right of `edit`, in its own namespace."""
    wanted = {
        "verb": "impersonate",
        "resource": "serviceaccounts",
        "name": "rollout-operator",
        "namespace": NAMESPACE,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert not mallory.me.send("POST", path, review).body["status"]["allowed"]
    own = wanted | {"namespace": mallory.namespace, "name": "default"}
    review["spec"]["resourceAttributes"] = own
    assert mallory.me.send("POST", path, review).body["status"]["allowed"], "as `edit` has it"


def test_the_operator_mints_tokens_of_others(mallory):
    """A bug in it, or a thief of its token, gets no other account's."""
    operator = mallory.installation.account("rollout-operator")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}

    def mint(account, namespace):
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return operator.send("POST", path, body).status

    assert mint("rollout-operator", NAMESPACE) == 201
    for account in ("rollout-certificates", "rollout-webhook"):
        assert mint(account, NAMESPACE) == 403
    assert mint("default", mallory.namespace) == 403
    for path in ("/api/v1/secrets", f"/api/v1/namespaces/{NAMESPACE}/secrets"):
        assert operator.send("GET", path).status == 403
