"""Mallory makes a RolloutSnapshot whose deletion shall take somebody else's bytes, or run a pod as somebody else."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "rollout_operator" / "simulation"))
sys.path.append(str(Path(__file__).parents[1] / "rollout_operator"))
sys.path.append(str(Path(__file__).parents[1] / "rollout" / "simulation"))

from purge_story import DIGEST, ROOT, RUN_UID, UID, play, runtime, snapshot
from worlds import PLATFORM

from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.v1alpha1.storage import Storage
from rollout_operator.errors import ChildRefused
from rollout_operator.run.permitted import build_allowances
from rollout_operator.snapshot.errand import build_account, build_job
from rollout_operator.snapshot.permitted import check_errand
from rollout_operator.snapshot.purge.job import PurgeInputs, build_purge

SNAPSHOT = {"name": "best", "namespace": "ns", "uid": UID}


def environment(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", "") for one in container["env"]}


@pytest.mark.parametrize(
    "status",
    [
        {"location": {"object": {"uri": f"{ROOT}/victim/uid/snapshots/manifests/{DIGEST}.json"}}},
        {"location": {"object": {"uri": f"{ROOT}/ns/else/snapshots/manifests/{DIGEST}.json"}}},
        {
            "location": {
                "object": {"uri": f"{ROOT}/ns/{RUN_UID}/../../victim/snapshots/manifests/x.json"}
            }
        },
        {"run": {"name": "run", "uid": "../victim/uid"}},
        {"run": {"name": "run", "uid": f"{RUN_UID}/../../victim"}},
        {
            "run": {"name": "run", "uid": "x/../../victim/uid"},
            "location": {
                "object": {"uri": f"{ROOT}/ns/x/../../victim/uid/snapshots/manifests/x.json"}
            },
        },
        {"storage": {"uri": "s3://victims-bucket/runs"}},
        {"storage": {"uri": f"{ROOT}/victim/.."}},
        {"storage": {"uri": ROOT, "endpoint": "http://mallory.example"}},
    ],
)
def test_a_status_that_names_another_place_makes_no_job(status):
    """A namespace editor cannot write a status; were it written, it would still be held against the runtime."""
    life = play(objects=[runtime(), snapshot(**status)])
    assert life.jobs == []
    assert life.purged_at is None
    assert life.reasons()[-1] == "PurgeGivenUp"


def test_what_is_said_of_the_bytes_decides_nothing_about_which_go():
    """Only the run's own place and the object's own UID are in the order: no digest, no path, no name of another."""
    forged = snapshot(digest="blake3:" + "cd" * 32)
    life = play(objects=[runtime(), forged])
    (job,) = life.jobs
    order = json.loads(environment(job)["ROLLOUT_PURGE_ORDER"])
    assert order["storage"] == {"uri": f"{ROOT}/ns"}
    assert order["run"] == {"name": "run", "namespace": "ns", "uid": RUN_UID}
    assert order["snapshot"] == UID
    assert "cd" * 32 not in json.dumps(job)


def inputs(root=ROOT, **spec):
    said = RuntimeSpec.model_validate({"storage": {"uri": ROOT}, **spec})
    told = PurgeInputs(
        **SNAPSHOT,
        run_name="run",
        run_uid=RUN_UID,
        ledger="Gone",
        storage=Storage.model_validate({"uri": root}),
        runtime=said,
        platform=PLATFORM,
    )
    return build_purge(told)


def check(manifest, ask, **changes):
    told = {**SNAPSHOT, "allowances": build_allowances(ask.runtime), **changes}
    check_errand(manifest, **told)


def test_the_pod_is_nobody_but_who_the_runtime_says():
    ask = inputs()
    job, account = build_job(ask), build_account(ask)
    check(job, ask)
    check(account, ask)
    pod = job["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert account["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert not any("projected" in one or "hostPath" in one for one in pod["volumes"])
    (container,) = pod["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    named = inputs(roles={"coordinator": {"serviceAccountName": "keeper"}})
    assert build_account(named) is None
    check(build_job(named), named)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("metadata", "namespace"), "victim", "namespace"),
        (("metadata", "name"), "purge-other", "name"),
        (("metadata", "ownerReferences"), [], "ownerReferences"),
        (("spec", "template", "spec", "serviceAccountName"), "victims-admin", "serviceAccountName"),
        (("spec", "template", "spec", "hostPID"), True, "hostPID"),
        (("spec", "template", "spec", "hostNetwork"), True, "hostNetwork"),
        (
            ("spec", "template", "spec", "volumes"),
            [{"name": "x", "hostPath": {"path": "/"}}],
            "volumes",
        ),
    ],
)
def test_a_broken_renderer_gives_the_job_no_more(path, value, words):
    ask = inputs()
    job = build_job(ask)
    inner = job
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    with pytest.raises(ChildRefused, match=words):
        check(job, ask)


def test_no_other_kind_leaves_as_a_purge():
    ask = inputs()
    for kind in ("Pod", "Secret", "RoleBinding", "CronJob"):
        with pytest.raises(ChildRefused, match="kind"):
            check({**build_job(ask), "kind": kind}, ask)


def test_variables_of_the_platform_do_not_change_the_order():
    """The runtime is the platform's; what a namespace's own runtime says of our variables is laid under ours."""
    env = [{"name": "ROLLOUT_PURGE_ORDER", "value": "{}"}, {"name": "AWS_REGION", "value": "here"}]
    found = environment(build_job(inputs(roles={"coordinator": {"env": env}})))
    assert found["AWS_REGION"] == "here"
    assert json.loads(found["ROLLOUT_PURGE_ORDER"])["snapshot"] == UID


def test_a_place_names_no_variable_of_the_pod():
    """A kubelet would put a secret in for it, and an error message would show it."""
    root = "s3://b/$(AWS_SECRET_ACCESS_KEY)"
    assert (
        play(objects=[runtime(storage={"uri": root}), snapshot(storage={"uri": root})]).jobs == []
    )
    said = environment(build_job(inputs(root)))["ROLLOUT_PURGE_ORDER"]
    assert "$" not in said
    assert json.loads(said)["storage"]["uri"] == f"{root}/ns"
