"""With no operator and no webhook, the schema alone takes every sample and refuses what its rules say."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import yamls
from cluster.kubectl import Kubectl
from cluster.paths import REPOSITORY
from cluster.providers import Cluster

pytestmark = pytest.mark.control_plane

CRDS = REPOSITORY / "crds" / "generated"
GOOD = sorted((REPOSITORY / "tests" / "rollout_api" / "manifests" / "good").glob("*.yaml"))
BAD = REPOSITORY / "tests" / "rollout_api" / "manifests" / "bad"
SAMPLES = sorted(
    path
    for path in (REPOSITORY / "manifests" / "samples").rglob("*.yaml")
    if "apiVersion: rollout.dev/" in path.read_text()
)
SMALLEST = REPOSITORY / "manifests" / "samples" / "arithmetic.yaml"
SMALLEST_LINES_MAX = 15
PLAIN_NUMBERS = {"plain-numbers.yaml"}
"""Local files may write decimals plain (decision 0002); a cluster takes them quoted only."""
REFUSED = {
    "aggregation-unknown": "Unsupported value",
    "name-too-long": "must have at most 40",
    "name-with-capitals": "Invalid value",
    "negative-temperature": "must be at least 0",
    "missing-model": "Required value",
    "model-with-two-sources": "exactly one of",
    "no-algorithm": "exactly one of",
}


@pytest.fixture(scope="module")
def kubectl(fake_cluster: Cluster) -> Kubectl:
    kubectl = replace(fake_cluster.kubectl, namespace="")
    crds = sorted(CRDS.glob("*s.yaml"))
    kubectl("apply", *(part for crd in crds for part in ("-f", str(crd))))
    names = [yamls.read(crd.read_text())["metadata"]["name"] for crd in crds]
    kubectl.wait("--for=condition=Established", *(f"crd/{name}" for name in names))
    kubectl.attempt("create", "namespace", "research")  # one sample names it
    return kubectl


def test_every_sample_is_accepted(kubectl: Kubectl):
    assert _refusals(kubectl, SAMPLES) == {}


def test_the_smallest_run_is_short_and_accepted(kubectl: Kubectl):
    """The sample, and the first manifest that README.md shows."""
    shown = re.search(r"```yaml\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    for text in (SMALLEST.read_text(), shown.group(1)):
        assert len(text.splitlines()) <= SMALLEST_LINES_MAX
        document = yamls.read(text)
        assert document["kind"] == "RolloutRun"
        kubectl("create", "--dry-run=server", "-f", "-", stdin=text)


def test_every_good_manifest_is_accepted_but_for_plain_numbers(kubectl: Kubectl):
    plain = [one for one in GOOD if one.name in PLAIN_NUMBERS]
    assert _refusals(kubectl, [one for one in GOOD if one not in plain]) == {}
    refused = _refusals(kubectl, plain)
    assert refused.keys() == PLAIN_NUMBERS
    assert all("must be of type string" in reason for reason in refused.values())


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_run_is_refused_with_its_reason(kubectl: Kubectl, name: str):
    answer = kubectl.attempt("create", "--dry-run=server", "-f", str(BAD / f"{name}.yaml"))
    assert answer.returncode != 0
    assert REFUSED[name] in answer.stderr


def _refusals(kubectl: Kubectl, files: list[Path]) -> dict[str, str]:
    """What kubectl says of each file that is refused; one call is enough where none is."""
    create = ("create", "--dry-run=server")
    if not kubectl.attempt(*create, *(f"--filename={file}" for file in files)).returncode:
        return {}
    tried = {file.name: kubectl.attempt(*create, "-f", str(file)) for file in files}
    return {name: answer.stderr for name, answer in tried.items() if answer.returncode}
