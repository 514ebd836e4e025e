"""A snapshot in a bucket, of a run in real pods whose object and volume are then deleted: it is gone on with elsewhere.

Another run on the other node begins with the snapshot object, and `rollout run` on this machine with the snapshot's
id. Both come to the hash chain of a run that nobody disturbed. Deleted with `deletionPolicy: Delete`, the object takes its bytes with it.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bucket import BUCKET, CREDENTIALS, REGION, Bucket, serving
from installation import cache_of
from samples import build_saved_run
from warm import run_rollout
from watched import Result, Stage, WatchedRun, read_result, run_here

from cluster.kubectl import Kubectl
from cluster.nodes.addons import build_volume
from waiting import wait_until

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(900)]

ANCHOR, BEYOND = 3, 2
"""Steps between anchors; steps that the other runs take after the snapshot."""
STEPS_OF_THE_FIRST = 100_000
START_SECONDS, SAVE_SECONDS, END_SECONDS = 300.0, 180.0, 300.0
PURGE_SECONDS = 300.0
GONE_SECONDS = 50.0
"""Less than the grace of a worker's pod: none of a deleted run has to be killed."""


def build_manifest(name: str, runtime: str, steps: int, **changes: Any) -> dict[str, Any]:
    reference = {"kind": "ClusterRolloutRuntime", "name": runtime}
    return build_saved_run(name, steps, ANCHOR, runtimeRef=reference, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A snapshot whose run is gone, and where it lies."""

    bucket: Bucket
    runtime: str
    node: str
    other_node: str
    status: dict[str, Any]

    @property
    def step(self) -> int:
        return self.status["step"]


@contextmanager
def on_one_node(kubectl: Kubectl, closed: str) -> Iterator[None]:
    """New pods go to the other node for a block."""
    kubectl("cordon", closed)
    try:
        yield
    finally:
        kubectl("uncordon", closed)


def nodes_of(run: WatchedRun) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in run.pods() if "nodeName" in pod["spec"]}


def delete_with_volume(run: WatchedRun) -> None:
    """The object, its pods, its claim and the bytes on its volume."""
    folder, (claim,) = run.folder(), run.kubectl.get("persistentvolumeclaims")["items"]
    run.kubectl("delete", "rolloutrun", run.name)
    run.wait_for_no_pods(GONE_SECONDS)
    run.kubectl("delete", "persistentvolumeclaim", claim["metadata"]["name"], "--ignore-not-found")
    run.kubectl("delete", "persistentvolume", claim["spec"]["volumeName"])
    shutil.rmtree(folder)


def take_snapshot(run: WatchedRun) -> dict[str, Any]:
    """Its status, once it is over."""
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutSnapshot"}
    spec = {"source": {"run": {"name": run.name}}, "deadlineSeconds": int(SAVE_SECONDS)}
    run.kubectl.apply({**head, "metadata": {"name": "taken"}, "spec": spec})

    def over() -> dict[str, Any] | None:
        status = run.kubectl.get("rolloutsnapshot", "taken").get("status", {})
        held = {one["type"] for one in status.get("conditions", ()) if one["status"] == "True"}
        return status if "Finished" in held else None

    return run.until(over, "the end of the snapshot", 2 * SAVE_SECONDS)


@pytest.fixture(scope="module")
def saved(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    runtime = f"bucket-{stage.kubectl.namespace}"
    node, other = (one.name for one in stage.cluster.nodes)
    with serving(stage.cluster, tmp_path_factory.mktemp("s3")) as bucket:
        stage.kubectl.apply(bucket.runtime(runtime, cache_of(stage.kubectl)))
        with on_one_node(stage.kubectl, other):
            run = stage.start(build_manifest("first", runtime, STEPS_OF_THE_FIRST))
            run.until(lambda: run.step() > ANCHOR, "an anchor", START_SECONDS)
            assert nodes_of(run) == {node}
            status = take_snapshot(run)
            delete_with_volume(run)
        yield Saved(bucket=bucket, runtime=runtime, node=node, other_node=other, status=status)
        stage.kubectl("delete", "clusterrolloutruntime", runtime)


@pytest.fixture(scope="module")
def undisturbed(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> Result:
    manifest = build_manifest("first", saved.runtime, saved.step + BEYOND)
    return run_here(manifest, tmp_path_factory.mktemp("undisturbed"))


def test_the_snapshot_is_complete_and_lies_in_the_bucket(saved: Saved):
    conditions = {one["type"]: one["status"] for one in saved.status["conditions"]}
    assert conditions["Complete"] == conditions["Ready"] == "True", saved.status
    assert saved.step % ANCHOR == 0
    assert saved.status["location"]["object"]["uri"].startswith(f"s3://{BUCKET}/team/")
    assert {one["name"] for one in saved.status["layers"]} == {"TrainState", "Buffer"}


def test_another_run_on_the_other_node_goes_on_from_it(
    saved: Saved, stage: Stage, undisturbed: Result, tmp_path: Path
):
    tmp_path.chmod(0o777)
    name = f"{stage.kubectl.namespace}-second"
    stage.kubectl.apply(build_volume(name, str(tmp_path), size="10Gi"))
    with on_one_node(stage.kubectl, saved.node):
        restored = {"restoreFrom": {"snapshotRef": {"name": "taken"}}}
        steps = saved.step + BEYOND
        run = stage.start(build_manifest("second", saved.runtime, steps, **restored))
        wait_until(run.pods, "a pod of the second run")
        end = run.wait_for_end(END_SECONDS)
    assert end["reason"] == "Succeeded", run.describe()
    assert_goes_on_as(undisturbed, read_result(run.folder()), saved.step)


def test_a_run_on_this_machine_goes_on_from_it(saved: Saved, undisturbed: Result, tmp_path: Path):
    place = saved.status["location"]["object"]["uri"].rpartition("/snapshots/")[0]
    snapshot = saved.status["digest"].removeprefix("blake3:")
    there = ("--object-path", place, "--endpoint", saved.bucket.endpoint, "--region", REGION)
    shown = json.loads(rollout(tmp_path, "snapshot", "show", snapshot, *there))
    file = tmp_path / "run.json"
    file.write_text(json.dumps(build_manifest("third", saved.runtime, saved.step + BEYOND)))
    words = ("run", "-f", str(file), "--run-dir", str(tmp_path / "run"), "--resume", snapshot)
    rollout(tmp_path, *words, *there, "--trust", shown["signer"])
    assert_goes_on_as(undisturbed, read_result(tmp_path / "run"), saved.step)


def test_it_gets_another_name_from_where_it_lies(saved: Saved, stage: Stage):
    """A pod reads it in the bucket; its name is all that the new object has of it."""
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutSnapshot"}
    uri, digest = saved.status["location"]["object"]["uri"], saved.status["digest"]
    reference = {"kind": "ClusterRolloutRuntime", "name": saved.runtime}
    spec = {"source": {"existing": {"uri": uri, "digest": digest}}, "runtimeRef": reference}
    stage.kubectl.apply({**head, "metadata": {"name": "named"}, "spec": spec})

    def over() -> dict[str, Any] | None:
        status = stage.kubectl.get("rolloutsnapshot", "named").get("status", {})
        held = {one["type"] for one in status.get("conditions", ()) if one["status"] == "True"}
        return status if "Finished" in held else None

    status = wait_until(over, "the end of the reading", PURGE_SECONDS)
    conditions = {one["type"]: one["message"] for one in status["conditions"]}
    assert "Complete" in conditions, conditions
    for field in ("step", "digest", "location", "layers", "sizeBytes", "grade"):
        assert status[field] == saved.status[field], field
    stage.kubectl("delete", "rolloutsnapshot", "named")
    assert saved.bucket.keys("team/") >= {uri.removeprefix(f"s3://{BUCKET}/")}


def test_deleted_with_its_bytes_it_leaves_none_of_them(saved: Saved, stage: Stage):
    """A Job in a pod, with the runtime's variables, reaches the bucket; the operator has no way to it."""
    uri = saved.status["location"]["object"]["uri"].removeprefix(f"s3://{BUCKET}/")
    place = uri.rpartition("/snapshots/")[0]
    document = saved.bucket.client().get_object(Bucket=BUCKET, Key=uri)["Body"].read()
    digests = {
        part["object"].removeprefix("blake3:")
        for layer in json.loads(document)["layers"]
        for part in layer["parts"]
    }
    mine = {f"{place}/blake3/{one[:2]}/{one}" for one in digests}
    before = saved.bucket.keys("team/")
    assert mine | {uri} <= before
    kubectl = stage.kubectl
    wish = json.dumps({"spec": {"deletionPolicy": "Delete"}})
    kubectl("patch", "rolloutsnapshot", "taken", "--type", "merge", "-p", wish)

    def held() -> bool:
        return bool(kubectl.get("rolloutsnapshot", "taken")["metadata"].get("finalizers"))

    wait_until(held, "the finalizer")
    kubectl("delete", "rolloutsnapshot", "taken", "--wait=false")

    def gone() -> bool:
        return not kubectl.get("rolloutsnapshots")["items"]

    wait_until(gone, "the end of the snapshot", PURGE_SECONDS)
    left = saved.bucket.keys("team/")
    assert before - left == mine | {uri}
    events = [one["reason"] for one in kubectl.get("events")["items"]]
    assert "Purged" in events
    assert "PurgeGivenUp" not in events


def test_a_run_is_saved_by_itself_and_what_it_no_longer_keeps_goes_with_its_bytes(
    saved: Saved, stage: Stage, tmp_path: Path
):
    """Anchors, the best of them and a suspension: the coordinator outlives its workers for the last one, which other runs begin with."""
    kubectl = stage.kubectl
    often = [{"name": "often", "everySteps": ANCHOR, "keepLast": 1}]
    asked = {"everySteps": ANCHOR, "keepLast": 1000, "schedules": often, "onSuspend": True}
    suite = {"suite": {"builtin": {"name": "arithmetic"}}, "maxPrompts": 2, "selects": True}
    evaluations = [{**suite, "everySteps": ANCHOR}]
    manifest = build_manifest(
        "watched",
        saved.runtime,
        STEPS_OF_THE_FIRST,
        snapshots={**asked, "best": True},
        evaluations=evaluations,
    )
    for name in ("watched", "third"):
        folder = tmp_path / name
        folder.mkdir()
        folder.chmod(0o777)
        kubectl.apply(build_volume(f"{kubectl.namespace}-{name}", str(folder), size="10Gi"))
    tmp_path.chmod(0o777)
    run = stage.start(manifest)

    def taken(schedule: str) -> list[dict[str, Any]]:
        chosen = f"rollout.dev/run=watched,rollout.dev/schedule={schedule}"
        return [one for one in kubectl.get("rolloutsnapshots", "-l", chosen)["items"] if holds(one)]

    def holds(snapshot: dict[str, Any]) -> bool:
        found = snapshot.get("status", {}).get("conditions", ())
        return any(one["type"] == "Complete" and one["status"] == "True" for one in found)

    first = run.until(lambda: taken("often"), "a snapshot by the schedule", START_SECONDS)[0]
    best = run.until(lambda: taken("best"), "a snapshot of the best version", SAVE_SECONDS)[0]
    assert best["status"]["step"] == best["spec"]["source"]["run"]["step"]
    uri = first["status"]["location"]["object"]["uri"].removeprefix(f"s3://{BUCKET}/")
    name = first["metadata"]["name"]
    run.until(lambda: uri not in saved.bucket.keys("team/"), "the end of its bytes", PURGE_SECONDS)
    run.until(
        lambda: name not in {one["metadata"]["name"] for one in taken("often")},
        "the end of its object",
        PURGE_SECONDS,
    )
    run.patch({"suspend": True})
    run.until(lambda: run.condition("Suspended"), "the suspension", SAVE_SECONDS)
    assert not run.pods()
    (last,) = taken("suspend")
    assert run.condition("SnapshotsScheduled")["reason"] == "SnapshotTaken", run.describe()
    assert last["status"]["step"] == run.status()["progress"]["step"]
    assert last["status"]["step"] >= first["status"]["step"] + ANCHOR
    kubectl("delete", "rolloutrun", "watched")
    assert len(taken("suspend")) == 1
    steps = last["status"]["step"] + BEYOND
    # The evaluations, too: a suspension may come while prompts of one are open, and then they are in the snapshot.
    restored = {
        "restoreFrom": {"snapshotRef": {"name": last["metadata"]["name"]}},
        "evaluations": evaluations,
    }
    third = stage.start(build_manifest("third", saved.runtime, steps, **restored))
    assert third.wait_for_end(END_SECONDS)["reason"] == "Succeeded", third.describe()


def assert_goes_on_as(undisturbed: Result, restored: Result, step: int) -> None:
    """A link of the chain holds all steps before it; the oldest of those before the snapshot are in no snapshot."""
    later = [link for link in restored.chains if link[0] > step]
    assert [number for number, _ in later] == list(range(step + 1, step + BEYOND + 1))
    assert later == [link for link in undisturbed.chains if link[0] > step]
    assert set(restored.chains) <= set(undisturbed.chains)


def rollout(folder: Path, *words: str) -> str:
    """A command of a person who has the bucket's credentials and nothing of the cluster."""
    own = {**CREDENTIALS, "XDG_CONFIG_HOME": str(folder / "config")}
    done = run_rollout(*words, folder=folder, environment=own, seconds_max=300.0)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
