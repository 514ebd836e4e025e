"""The CRDs of the project are small enough for client-side apply and mean the same when applied again."""

import json
from pathlib import Path
from typing import Any

import pytest

import yamls
from cluster.kubectl import Kubectl
from cluster.paths import REPOSITORY
from cluster.providers import Cluster
from runs import install_crds

pytestmark = pytest.mark.control_plane

CRDS = sorted((REPOSITORY / "crds" / "generated").glob("*s.yaml"))
SAMPLES = sorted(
    path
    for path in (REPOSITORY / "manifests" / "samples").rglob("*.yaml")
    if "apiVersion: rollout.dev/" in path.read_text()
)
ANNOTATION_BYTES_MAX = 262_144
"""What client-side apply may keep in its annotation: the whole object, once more."""


@pytest.fixture
def kubectl(fake_cluster: Cluster) -> Kubectl:
    return fake_cluster.kubectl


@pytest.mark.parametrize("crd", CRDS, ids=lambda path: path.stem)
def test_a_crd_is_smaller_than_an_annotation(crd: Path):
    assert crd.stat().st_size < ANNOTATION_BYTES_MAX


@pytest.mark.parametrize("crd", CRDS, ids=lambda path: path.stem)
def test_a_crd_applied_twice_is_established_and_unchanged(kubectl: Kubectl, crd: Path):
    name = yamls.read(crd.read_text())["metadata"]["name"]
    kubectl("apply", "-f", str(crd))
    kubectl("apply", "-f", str(crd))
    kubectl.wait("--for=condition=Established", f"crd/{name}")
    found = kubectl.get("crd", name)
    assert found["metadata"]["generation"] == 1
    assert {c["type"]: c["status"] for c in found["status"]["conditions"]}[
        "NamesAccepted"
    ] == "True"
    assert "NonStructuralSchema" not in {c["type"] for c in found["status"]["conditions"]}


def samples() -> list[dict[str, Any]]:
    """Every run of the samples, under a name that no other has, in the namespace of the test."""
    found = [one for path in SAMPLES for one in yamls.read_all(path.read_text()) if one]
    runs = [one for one in found if one["kind"] == "RolloutRun"]
    for number, run in enumerate(runs):
        run["metadata"] = {"name": f"sample-{number}"}
    return runs


def test_a_server_side_diff_of_what_was_synced_is_empty(kubectl: Kubectl, fake: Kubectl):
    """What GitOps tools compare: applied by them once, no sample is out of step afterwards."""
    install_crds(kubectl)
    runs = json.dumps({"apiVersion": "v1", "kind": "List", "items": samples()})
    manager = ("--server-side", "--field-manager=gitops", "-f", "-")
    fake("apply", *manager, stdin=runs)

    compared = fake.attempt("diff", *manager, stdin=runs)

    assert (compared.returncode, compared.stdout) == (0, ""), compared.stderr


def test_the_samples_applied_twice_are_unchanged(kubectl: Kubectl, fake: Kubectl):
    install_crds(kubectl)
    runs = samples()
    fake.apply(*runs)
    before = {one["metadata"]["name"]: one["metadata"] for one in fake.get("rolloutruns")["items"]}
    assert len(before) == len(runs) >= len(SAMPLES)

    fake.apply(*runs)

    for one in fake.get("rolloutruns")["items"]:
        meta = one["metadata"]
        assert meta["generation"] == 1
        assert meta["resourceVersion"] == before[meta["name"]]["resourceVersion"]
