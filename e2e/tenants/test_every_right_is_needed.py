"""A thief of a token of ours finds no right that is not used: the roles as they are bound, against the API server's log."""

import asyncio
import base64
from pathlib import Path

import pytest
import yaml
from operators import eventually
from rights import Right, granted, is_used, used
from tenant import RUN

from charts import NAMESPACE
from rollout.coordinator.status.kubernetes import ApiWriter
from rollout_api import names
from rollout_api.v1alpha1.run_status import Progress
from rollout_api.worker import ProgressWriting, RunIdentity
from runs import build_run

pytestmark = pytest.mark.control_plane
ELSEWHERE = {
    *("kueue.x-k8s.io", "scheduling.k8s.io", "monitoring.coreos.com"),
    *("keda.sh", "gateway.networking.k8s.io"),
}
"""Kinds that this cluster has not: Kueue's, KEDA's and the Gateway API's are asked for in tests of their own."""
WITHOUT_A_CALL = {
    Right(group="rollout.dev", resource="rolloutruns/finalizers", verb="update"),
    Right(group="rollout.dev", resource="rolloutendpoints/finalizers", verb="update"),
    *(
        Right(group="rbac.authorization.k8s.io", resource="clusterroles", verb="bind", name=role)
        for role in ("rollout-coordinator", "rollout-coordinator-sandboxes")
    ),
}
"""Checked by the API server as a child is made that names its run as owner, or a role."""
SPOILED = {
    "Service": f"{RUN}-learner",
    "ServiceAccount": f"{RUN}-actor",
    "StatefulSet": f"{RUN}-actors",
    "RoleBinding": f"{RUN}-progress",
    "NetworkPolicy": f"{RUN}-actors",
    "PodDisruptionBudget": f"{RUN}-actors",
    "ConfigMap": f"{RUN}-keys",
}
SERVED = {
    "model": {"uri": "rollout://tiny-adder"},
    "engine": {"embedded": {}},
    "scaling": {"maxReplicas": 2, "hpa": {}},
}
LABEL = names.LABEL_PART_OF
ENDS = {"ttlSecondsAfterFinished": 0, "ttlAction": "DeleteRun"}


@pytest.fixture
def boss(installation, mallory):
    """The administrator, in a tenant's namespace."""
    return installation.person(namespace=mallory.namespace)


def user_of(account, namespace=NAMESPACE):
    return f"system:serviceaccount:{namespace}:{account}"


def find_unused(installation, account, namespace=NAMESPACE):
    mine = granted(installation.kubectl, account, namespace)
    done, _ = used(installation.audit_log(), user_of(account, namespace))
    here = {one for one in mine - WITHOUT_A_CALL if one.group not in ELSEWHERE}
    return {one for one in here if not is_used(one, done)}


def assert_exact(installation, account, namespace=NAMESPACE):
    """What it may it does, and it is refused nothing."""
    eventually(
        lambda: not find_unused(installation, account, namespace),
        f"{account} has rights that it does not use: {find_unused(installation, account, namespace)}",
        seconds=10,
    )
    assert used(installation.audit_log(), user_of(account, namespace))[1] == []


def test_the_operator_has_a_right_that_a_whole_life_does_not_need(installation, mallory, boss):
    begin(mallory, boss)
    renew(mallory, boss)
    repair(mallory, boss)
    serve(mallory, boss)
    restart(mallory)
    save(mallory, boss)
    save_by_schedule(mallory)
    sweep(mallory, boss)
    finish(mallory)
    purge(mallory, boss)
    assert_exact(installation, "rollout-operator")


def begin(mallory, boss):
    head = {"apiVersion": "rollout.dev/v1alpha1", "metadata": {"name": "x"}}
    other = {"name": f"x-{mallory.namespace}"}
    labels = {"kubernetes.io/metadata.name": mallory.namespace}
    served = {"allowedNamespaces": {"from": "Selector", "selector": {"matchLabels": labels}}}
    served["storage"] = {"uri": "s3://nobody/runs"}
    for one in (
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}},
        {**head, "kind": "RolloutRuntime", "spec": {}},
        {**head, "kind": "RolloutSnapshot", "spec": {"source": {"run": {"name": "a"}}}},
        {**head, "kind": "RolloutEndpoint", "spec": {**SERVED, "runtimeRef": other}},
        {**head, "kind": "ClusterRolloutRuntime", "metadata": other, "spec": served},
    ):
        assert boss.create(one).done, one["kind"]
    named = {"limits": ENDS, "code": {"configMap": {"name": "mine"}}, "runtimeRef": other}
    mallory.start(spec=named)


def renew(mallory, boss):
    """A certificate that ends; that the keys are gone makes the operator look."""
    ended = {names.ANNOTATION_NOT_AFTER: "2020-01-01T00:00:00Z"}
    assert boss.patch("Secret", f"{RUN}-tls", {"metadata": {"annotations": ended}}).done
    assert boss.delete("ConfigMap", f"{RUN}-keys").done

    def is_renewed():
        meta = boss.get("Secret", f"{RUN}-tls").body["metadata"]
        return meta["annotations"][names.ANNOTATION_NOT_AFTER] > "2026"

    eventually(is_renewed, "the certificate was not renewed")
    eventually(lambda: boss.get("ConfigMap", f"{RUN}-keys").done, "the keys did not come back")


def repair(mallory, boss):
    there = {kind: name for kind, name in SPOILED.items() if boss.get(kind, name).done}
    for kind, name in there.items():
        assert boss.patch(kind, name, {"metadata": {"labels": {LABEL: "else"}}}).done

    def is_repaired(kind, name):
        return boss.get(kind, name).body["metadata"]["labels"][LABEL] == "rollout"

    for kind, name in there.items():
        eventually(lambda k=kind, n=name: is_repaired(k, n), f"{kind} {name} stayed spoiled")


def serve(mallory, boss):
    """Servers of an endpoint and their autoscaler are made, spoiled, put right, and taken away."""

    def servers():
        return mallory.kubectl.get("deployments")["items"]

    [found] = eventually(servers, "no servers")
    there = {"Deployment": found["metadata"]["name"], "HorizontalPodAutoscaler": "x-server"}
    for kind, name in there.items():
        assert boss.patch(kind, name, {"metadata": {"labels": {LABEL: "else"}}}).done

        def is_repaired(kind=kind, name=name):
            return boss.get(kind, name).body["metadata"]["labels"][LABEL] == "rollout"

        eventually(is_repaired, f"{kind} {name} stayed spoiled")
    endpoint = mallory.kubectl.get("rolloutendpoints")["items"][0]["metadata"]["name"]
    assert boss.patch("RolloutEndpoint", endpoint, {"spec": {"suspend": True}}).done
    eventually(lambda: not servers(), "the servers stayed")


def restart(mallory):
    """The learner's pods start anew, and a living run has another setting."""
    mallory.world.puppets.fail(f"{RUN}-learner-0", "learner", 1)
    eventually(
        lambda: mallory.world.run()["status"]["learner"]["restarts"] == 1, "no group restart"
    )
    mallory.world.wait_for("Ready", "True", "Running")
    mallory.world.patch({"train": {"maxSteps": 500}})


def save(mallory, boss):
    """A snapshot whose bytes shall go with it; no coordinator is there to take it."""
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutSnapshot"}
    spec = {"source": {"run": {"name": RUN}}, "deletionPolicy": "Delete"}
    assert boss.create({**head, "metadata": {"name": "kept"}, "spec": spec}).done

    def is_begun():
        live = boss.get("RolloutSnapshot", "kept").body
        kept = live["metadata"].get("finalizers") == [names.FINALIZER_SNAPSHOT]
        return kept and "run" in live.get("status", {})

    eventually(is_begun, "the snapshot was not begun")


def save_by_schedule(mallory):
    """Two snapshots that nobody takes in time: of those that have failed the newest is kept."""
    quick = {"name": "quick", "everySteps": 25, "deadlineSeconds": 1}
    mallory.world.patch({"snapshots": {"everySteps": 25, "schedules": [quick]}})

    def told():
        return mallory.world.run()["status"].get("schedules")

    def of_schedule():
        chosen = f"{names.LABEL_SCHEDULE}=quick"
        return mallory.kubectl.get("rolloutsnapshots", "-l", chosen)["items"]

    eventually(told, "the schedule was not followed")
    for step in (25, 50):
        anchor = {"name": f"step-{step:06d}", "step": step}
        mallory.world.report({"step": step, "lastSnapshot": anchor})
        eventually(lambda n=step: f'-{n}"' in str(told()).replace("'", '"'), "no snapshot was made")
    eventually(
        lambda: (
            any("deletionTimestamp" in one["metadata"] for one in of_schedule())
            or len(of_schedule()) == 1
        ),
        "the older snapshot stayed",
    )


def sweep(mallory, boss):
    """Three runs are made, and two of them lose at their first rung; the third is suspended with the sweep, and goes on with it."""
    halving = {"firstStep": 20, "factor": 3}
    spec = {
        "parameters": [{"field": "seed", "values": ["1", "2", "3"]}],
        "parallelism": 3,
        "earlyStopping": {"halving": halving},
        "template": {"spec": build_run()["spec"]},
    }
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutSweep"}
    assert boss.create({**head, "metadata": {"name": "swept"}, "spec": spec}).done
    made = [names.sweep_run_name("swept", number) for number in range(3)]
    for name in made:
        eventually(lambda n=name: boss.get("RolloutRun", n).done, f"{name} was not made")
    for number, name in enumerate(made):
        mallory.world.report({"step": 21, "rewardMean": f"0.{number}"}, name)
    for name in made[:2]:
        eventually(
            lambda n=name: boss.get("RolloutRun", n).body["spec"].get("suspend"),
            f"{name} was not stopped",
            seconds=60,
        )
    for wanted in (True, False):
        assert boss.patch("RolloutSweep", "swept", {"spec": {"suspend": wanted}}).done
        eventually(
            lambda n=made[2], w=wanted: (
                bool(boss.get("RolloutRun", n).body["spec"].get("suspend")) == w
            ),
            "the sweep's suspension was not carried out",
            seconds=60,
        )
    assert boss.delete("RolloutSweep", "swept").done
    for name in made:
        boss.delete("RolloutRun", name)


def purge(mallory, boss):
    """Its run is over and gone: a Job removes the bytes, of which there are none here, nor anybody who runs it."""
    uid = boss.get("RolloutSnapshot", "kept").body["metadata"]["uid"]
    assert boss.delete("RolloutSnapshot", "kept").done
    eventually(lambda: boss.get("Job", names.purge_name(uid)).done, "no Job was made")
    let_go = {"spec": {"deletionPolicy": "Retain"}}
    assert boss.patch("RolloutSnapshot", "kept", let_go).done
    eventually(lambda: not boss.get("RolloutSnapshot", "kept").done, "the snapshot was not let go")


def finish(mallory):
    mallory.world.succeed()
    eventually(lambda: not mallory.kubectl.get("rolloutruns")["items"], "the run outlived its time")


def test_the_webhook_and_the_certificates_have_rights_that_they_do_not_need(installation, mallory):
    assert granted(installation.kubectl, "rollout-webhook", NAMESPACE) == set()
    assert_exact(installation, "rollout-webhook")
    assert_exact(installation, "rollout-certificates")


def test_a_coordinator_may_more_than_it_does(installation, mallory, boss, tmp_path):
    """The coordinator's own writer, with the token that its pod would have."""
    uid = mallory.start()["metadata"]["uid"]
    account = f"{RUN}-coordinator"
    path = f"/api/v1/namespaces/{mallory.namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = boss.send("POST", path, body).body["status"]["token"]
    run = RunIdentity(name=RUN, namespace=mallory.namespace, uid=uid)
    asyncio.run(ApiWriter(writing(mallory, token, tmp_path), run).write(Progress(step=3)))
    assert mallory.world.run()["status"]["progress"]["step"] == 3
    assert_exact(installation, account, mallory.namespace)
    for other in ("actor", "learner"):
        assert granted(installation.kubectl, f"{RUN}-{other}", mallory.namespace) == set()


def writing(mallory, token, scratch):
    cluster = yaml.safe_load(mallory.kubectl.kubeconfig.read_text())["clusters"][0]["cluster"]
    (scratch / "token").write_text(token)
    authority = scratch / "ca.crt"
    if "certificate-authority-data" in cluster:
        authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    else:
        authority = Path(cluster["certificate-authority"])
    return ProgressWriting(
        api_url=cluster["server"], token_file=str(scratch / "token"), ca_file=str(authority)
    )
