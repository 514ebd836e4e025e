"""Mallory gives a snapshot of somebody else a name in a namespace of their own, or has a forged one believed."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "rollout_operator" / "simulation"))
sys.path.append(str(Path(__file__).parents[1] / "rollout_operator"))
sys.path.append(str(Path(__file__).parents[1] / "rollout" / "simulation"))

from purge_story import DIGEST, ROOT, UID, play, runtime

from rollout_api import names
from rollout_api.v1alpha1.pods.allowed import Allowed
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.run.plan.preconditions.restoring import foreign_signers
from rollout_operator.run.plan.preconditions.upstreams import Readable

OWN, OTHER = "ed25519:" + "a" * 64, "ed25519:" + "b" * 64


def existing(place):
    uri = f"{place}/{names.SNAPSHOT_MANIFESTS}{DIGEST}.json"
    source = {"existing": {"uri": uri, "digest": f"blake3:{DIGEST}"}}
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutSnapshot"}
    meta = {"name": "best", "namespace": "ns", "uid": UID}
    return {**head, "metadata": meta, "spec": {"source": source, "deadlineSeconds": 60}}


@pytest.mark.parametrize(
    "place",
    [
        f"{ROOT}/victim/uid-of-theirs",
        f"{ROOT}/ns-too/uid-of-theirs",
        f"{ROOT}/ns/../victim/uid-of-theirs",
        f"{ROOT}/ns/%2e%2e/victim/uid-of-theirs",
        f"{ROOT}/$(namespace)/x",
        f"{ROOT}/ns",
        "s3://elsewhere/ns/uid",
        "file:///var/lib/rollout",
        "http://169.254.169.254/latest",
    ],
)
def test_no_pod_is_sent_to_the_place_of_another(place):
    life = play(objects=[runtime()], adopts=existing(place), job=None)
    assert life.jobs == []
    assert "location" not in life.status


@pytest.mark.parametrize("place", [f"{ROOT}/victim/uid", f"{ROOT}/ns/../victim/uid", "s3://x/ns/y"])
def test_a_status_that_says_so_is_not_read_by_a_run(place):
    """Nor by one whose RolloutSnapshot tells of no run: its place is held against the run's own runtime."""
    readable = Readable(namespace="ns", roots=(ROOT,), lists=Allowed())
    assert not readable.allows(place)
    assert readable.allows(f"{ROOT}/ns/uid")


def test_a_forged_answer_fills_a_status_and_proves_nothing():
    """A tenant may write what a pod of theirs says: the run asks the bucket, with the keys that the operator names."""
    layers = [{"kind": "train_state", "digest": "c" * 64, "size_bytes": 1, "grade": "exact"}]
    said = {"state": "Taken", "id": DIGEST, "grade": "exact", "layers": layers, "step": 9}
    forged = {**said, "location": f"{ROOT}/victim/uid", "signer": OWN, "run": {"uid": "x"}}
    place = f"{ROOT}/ns/mine"
    life = play(objects=[runtime()], adopts=existing(place), job=("Complete", json.dumps(forged)))
    uri = f"{place}/{names.SNAPSHOT_MANIFESTS}{DIGEST}.json"
    assert life.status["location"] == {"object": {"uri": uri}}
    assert life.status["digest"] == f"blake3:{DIGEST}"
    assert "run" not in life.status
    assert "storage" not in life.status


def test_the_installations_own_key_is_never_another_installation():
    """Else its snapshots would leave their namespaces by a mistake in a runtime."""
    trusting = RuntimeSpec.model_validate({"trustedSigners": [OWN, OTHER]})
    assert foreign_signers(trusting, (OWN,)) == (OTHER,)
