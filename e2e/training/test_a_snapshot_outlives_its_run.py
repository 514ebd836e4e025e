"""A run in pods keeps its snapshots in a bucket; run and volume go, and others go on from one: in pods, and on a laptop.

Both end at the hash chain of a run that nobody disturbed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from bucket import BUCKET, KEYS, reached_from_here, start_bucket
from samples import build_manifest
from watched import Result, Stage, WatchedRun, read_result, run_here

from cluster.nodes.addons import build_volume
from waiting import wait_until

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(1200)]

START_SECONDS, SNAPSHOT_SECONDS, END_SECONDS = 300.0, 180.0, 300.0
STEPS_MORE = 3
SNAPSHOT = "middle"
RUNTIME = "with-a-bucket"
SMALL = {
    "model": {"uri": "rollout://tiny-adder?steps=0"},
    "train": {"algorithm": {"grpo": {"promptsPerStep": 4, "groupSize": 4}}, "maxSteps": 4000},
    "actors": {"engine": {"vllm": None, "embedded": {}}},
    "learner": {"nodes": None},
    "evaluations": None,
    "snapshots": {"everySteps": 2},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen: the snapshot's status, the step it holds, and what the runs after it came to."""

    snapshot: dict[str, Any]
    step: int
    elsewhere: Result
    laptop: Result


@pytest.fixture(scope="module")
def seen(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    endpoint = start_bucket(stage.kubectl)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": BUCKET}}
    stage.kubectl.apply({**secret, "stringData": KEYS}, _runtime(stage, endpoint))
    snapshot = _take_snapshot(stage)
    step = snapshot["step"]
    _forget(stage)
    elsewhere = _go_on_in_pods(stage, step, tmp_path_factory.mktemp("ledger"))
    with reached_from_here(stage.kubectl) as address:
        laptop = _go_on_here(snapshot, address, step, tmp_path_factory.mktemp("laptop"))
    return Seen(snapshot=snapshot, step=step, elsewhere=elsewhere, laptop=laptop)


def _runtime(stage: Stage, endpoint: str) -> dict[str, Any]:
    """The sample's runtime, its objects in the bucket."""
    found = stage.kubectl.get("clusterrolloutruntime", "cpu")
    spec = {**found["spec"], "storage": {"uri": f"s3://{BUCKET}", "endpoint": endpoint}}
    kinds = {"apiVersion": found["apiVersion"], "kind": found["kind"]}
    return {**kinds, "metadata": {"name": RUNTIME}, "spec": spec}


def _manifest(name: str, **changes: Any) -> dict[str, Any]:
    manifest = build_manifest(**SMALL)
    manifest["metadata"]["name"] = name
    manifest["spec"] |= {
        "runtimeRef": {"kind": "ClusterRolloutRuntime", "name": RUNTIME},
        "env": [
            {"name": key, "valueFrom": {"secretKeyRef": {"name": BUCKET, "key": key}}}
            for key in KEYS
        ],
        **changes,
    }
    return manifest


def _take_snapshot(stage: Stage) -> dict[str, Any]:
    run = stage.start(_manifest("first"))
    run.until(lambda: run.step() >= 3, "some steps", START_SECONDS)
    stage.kubectl.apply(
        {
            "apiVersion": "rollout.dev/v1alpha1",
            "kind": "RolloutSnapshot",
            "metadata": {"name": SNAPSHOT},
            "spec": {"source": {"run": {"name": "first"}}},
        }
    )

    def taken() -> dict[str, Any] | None:
        status = stage.kubectl.get("rolloutsnapshot", SNAPSHOT).get("status", {})
        kinds = {one["type"]: one for one in status.get("conditions", ())}
        if kinds.get("Failed", {}).get("status") == "True":
            raise AssertionError(f"{kinds['Failed']}; {run.describe()}")
        return status if kinds.get("Complete", {}).get("status") == "True" else None

    return wait_until(taken, "the snapshot is taken", SNAPSHOT_SECONDS, every=0.5)


def _forget(stage: Stage) -> None:
    """Run and volume are deleted; what is left is the bucket and the snapshot's object."""
    stage.kubectl("delete", "rolloutrun", "first", "--timeout=180s")
    stage.kubectl("delete", "persistentvolumeclaims", "--all", "--timeout=60s")
    stage.kubectl("delete", "persistentvolume", stage.kubectl.namespace, "--timeout=60s")


def _go_on_in_pods(stage: Stage, step: int, folder: Any) -> Result:
    folder.chmod(0o777)
    stage.kubectl.apply(build_volume(f"{stage.kubectl.namespace}-2", str(folder), size="10Gi"))
    manifest = _manifest("second", restoreFrom={"snapshotRef": {"name": SNAPSHOT}})
    manifest["spec"]["train"]["maxSteps"] = step + STEPS_MORE
    run: WatchedRun = stage.start(manifest)
    run.wait_for_end(END_SECONDS)
    return read_result(run.folder())


def _go_on_here(snapshot: dict[str, Any], address: str, step: int, folder: Any) -> Result:
    """With the bucket's address as a laptop sees it, and trust in the key that signed."""
    place = snapshot["location"]["object"]["uri"].partition("/snapshots/manifests/")[0]
    given = {**os.environ, **KEYS, "AWS_ENDPOINT_URL": address, "HOME": str(folder)}
    identity = snapshot["digest"].removeprefix("blake3:")
    shown = _rollout(given, "snapshot", "show", identity, "--object-path", place)
    manifest = build_manifest(**SMALL)
    manifest["metadata"]["name"] = "third"
    manifest["spec"]["train"]["maxSteps"] = step + STEPS_MORE
    del manifest["spec"]["runtimeRef"]
    file = folder / "run.json"
    file.write_text(json.dumps(manifest))
    where = folder / "run"
    trusted = ("--resume", identity, "--object-path", place, "--trust", json.loads(shown)["signer"])
    _rollout(given, "run", "-f", str(file), "--run-dir", str(where), *trusted)
    return read_result(where)


def _rollout(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "rollout", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def undisturbed(seen: Seen, tmp_path_factory: pytest.TempPathFactory) -> Result:
    manifest = build_manifest(**SMALL)
    manifest["spec"]["train"]["maxSteps"] = seen.step + STEPS_MORE
    return run_here(manifest, tmp_path_factory.mktemp("here"))


def test_the_snapshot_says_where_it_lies_and_what_it_holds(seen: Seen):
    assert seen.snapshot["location"]["object"]["uri"].startswith(f"s3://{BUCKET}/")
    assert seen.step >= 2


def test_a_run_in_pods_goes_on_to_the_chain_of_one_that_nobody_disturbed(
    seen: Seen, undisturbed: Result
):
    assert seen.elsewhere.outcome == "Succeeded"
    assert seen.elsewhere.chains[-STEPS_MORE:] == undisturbed.chains[-STEPS_MORE:]


def test_a_laptop_goes_on_from_the_same_bucket_to_the_same_chain(seen: Seen, undisturbed: Result):
    assert seen.laptop.outcome == "Succeeded"
    assert seen.laptop.chains[-STEPS_MORE:] == undisturbed.chains[-STEPS_MORE:]
