"""Flux's source-controller takes the charts of a release from CNCF Distribution by the sample for it: with the releaser's key, and not else.

What cosign itself says of the same signatures is in tests/rollout_operator/release.
"""

import hashlib
import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from flux_controllers import Flux, reconciling

from cluster.errors import BuildError
from cluster.paths import REPOSITORY
from cluster.providers import Cluster
from cluster.skips import or_skip
from namespaces import in_namespace
from runs import lay_over

sys.path.insert(0, str(REPOSITORY / "tests" / "rollout_operator" / "release"))

import release_kit
from distribution import distributing, push_release

from release import oci, signatures

pytestmark = [pytest.mark.control_plane, pytest.mark.slow, pytest.mark.timeout(900)]

SECRET = "rollout-release-key"
UNSIGNED = "9.9.9"
TAKEN_SECONDS = 120.0
SHOWN = {
    one["metadata"]["name"]: one
    for one in yaml.safe_load_all(
        (REPOSITORY / "manifests" / "gitops" / "flux-release.yaml").read_text()
    )
}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> release_kit.MadeRelease:
    return release_kit.make_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def place(
    released: release_kit.MadeRelease, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A registry with the release, and with a version of its chart that nobody has signed."""
    with distributing(tmp_path_factory.mktemp("registry")) as address:
        push_release(released.folder, f"{address}/team")
        _push_unsigned(f"http://{address}/v2/team/charts/rollout/manifests", released.version)
        yield f"{address}/team"


def _push_unsigned(manifests: str, version: str) -> None:
    head = {"Accept": oci.MANIFEST_TYPE, "Content-Type": oci.MANIFEST_TYPE}
    asked = urllib.request.Request(f"{manifests}/{version}", headers=head)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        manifest = json.load(answer)
    manifest["annotations"] = {**manifest.get("annotations", {}), "changed": "by mallory"}
    body = json.dumps(manifest).encode()
    asked = urllib.request.Request(f"{manifests}/{UNSIGNED}", body, head, method="PUT")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.status == 201


@pytest.fixture(scope="module")
def flux(fake_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flux]:
    local, scratch = fake_cluster.local, tmp_path_factory.mktemp("flux")
    if local is None:
        pytest.skip("cannot run here: only the local provider runs Flux as processes")
    with (
        in_namespace(local.kubectl) as mine,
        or_skip(BuildError),
        reconciling(local, scratch, mine) as made,
    ):
        yield made
        mine("delete", "ocirepositories", "--all")


@pytest.fixture(scope="module")
def say(flux: Flux, place: str) -> Any:
    """Ask for a chart as the sample does, by somebody's key: what Flux says of the signature, and the bytes that it took."""

    def ask(chart: str, tag: str, number: int) -> tuple[str, str, str]:
        public = signatures.public_pem(release_kit.fixed_key(number).public_key()).decode()
        key = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}}
        meta = {"namespace": flux.kubectl.namespace}
        spec = {"url": f"oci://{place}/charts/{chart}", "ref": {"tag": tag}, "insecure": True}
        flux.kubectl("delete", "ocirepository", chart, "--ignore-not-found")
        flux.kubectl.apply({**key, "stringData": {"cosign.pub": public}})
        flux.kubectl.apply(lay_over(SHOWN[chart], {"metadata": meta, "spec": spec}))

        def told() -> tuple[str, str, str]:
            ready = flux.condition("ocirepository", chart)
            verified = flux.condition("ocirepository", chart, "SourceVerified")
            taken = flux.status("ocirepository", chart).get("artifact", {}).get("digest", "")
            is_settled = ready.get("status") in {"True", "False"} and "status" in verified
            return (verified["status"], verified["message"], taken) if is_settled else ()

        return flux.until(told, f"a word on {chart}:{tag}", TAKEN_SECONDS)

    return ask


@pytest.mark.parametrize("chart", sorted(SHOWN))
def test_each_chart_is_taken_as_it_was_signed(
    released: release_kit.MadeRelease, say: Any, chart: str
):
    verified, message, taken = say(chart, released.version, 7)
    assert verified == "True", message
    assert taken in _digests_of_blobs(released.layout(f"charts/{chart}"))


def _digests_of_blobs(layout: Path) -> set[str]:
    blobs = (path for path in layout.rglob("*") if path.is_file())
    return {f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in blobs}


def test_by_another_key_nothing_is_taken(released: release_kit.MadeRelease, say: Any):
    verified, message, taken = say("rollout", released.version, 8)
    assert (verified, taken) == ("False", ""), message


def test_what_nobody_has_signed_is_not_taken(say: Any):
    verified, message, taken = say("rollout", UNSIGNED, 7)
    assert (verified, taken) == ("False", ""), message
