"""With no operator and no webhook, the schema alone takes every sample and refuses what its rules say."""

from pathlib import Path

import pytest
import yaml

from cluster.kubectl import Kubectl
from cluster.paths import REPOSITORY

pytestmark = pytest.mark.control_plane

CRDS = REPOSITORY / "crds" / "generated"
GOOD = sorted((REPOSITORY / "tests" / "rollout_api" / "manifests" / "good").glob("*.yaml"))
BAD = REPOSITORY / "tests" / "rollout_api" / "manifests" / "bad"
SAMPLES = sorted(
    path
    for path in (REPOSITORY / "manifests").rglob("*.yaml")
    if "apiVersion: rollout.dev/" in path.read_text()
)
REFUSED = {
    "aggregation-unknown": "Unsupported value",
    "name-too-long": "may have at most 40",
    "name-with-capitals": "Invalid value",
    "negative-temperature": "must be at least 0",
    "missing-model": "Required value",
    "model-with-two-sources": "exactly one of",
    "no-algorithm": "exactly one of",
    "no-end": "maxSteps",
}


@pytest.fixture
def kubectl(fake: Kubectl) -> Kubectl:
    crds = sorted(CRDS.glob("*s.yaml"))
    fake("apply", *(part for crd in crds for part in ("-f", str(crd))))
    names = [yaml.safe_load(crd.read_text())["metadata"]["name"] for crd in crds]
    fake.wait("--for=condition=Established", *(f"crd/{name}" for name in names))
    return fake


def test_every_sample_is_accepted(kubectl: Kubectl):
    assert _refusals(kubectl, SAMPLES) == {}


def test_every_good_manifest_is_accepted(kubectl: Kubectl):
    assert _refusals(kubectl, GOOD) == {}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_run_is_refused_with_its_reason(kubectl: Kubectl, name: str):
    answer = kubectl.attempt("create", "--dry-run=server", "-f", str(BAD / f"{name}.yaml"))
    assert answer.returncode != 0
    assert REFUSED[name] in answer.stderr


def _refusals(kubectl: Kubectl, files: list[Path]) -> dict[str, str]:
    tried = {
        file.name: kubectl.attempt("create", "--dry-run=server", "-f", str(file)) for file in files
    }
    return {name: answer.stderr for name, answer in tried.items() if answer.returncode}
