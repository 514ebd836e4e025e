"""Manifests of other projects that our pages show: the definitions those projects publish take them, on a real API server.

CloudNativePG's and Flux's HelmRelease are not in the Go proxy: their fields are read, not asked.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import build
from cluster.errors import BuildError
from cluster.kubectl import Kubectl
from cluster.paths import REPOSITORY
from cluster.pins import EXTERNAL_SECRETS, FLUX_KUSTOMIZE, FLUX_SOURCE, KARPENTER
from cluster.providers import Cluster

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

MANIFESTS = REPOSITORY / "manifests"
FILES = {
    KARPENTER: "pkg/apis/crds/karpenter.*.yaml",
    EXTERNAL_SECRETS: "config/crds/bases/external-secrets.io_*.yaml",
    FLUX_KUSTOMIZE: "config/crd/bases/kustomize.toolkit.fluxcd.io_kustomizations.yaml",
    FLUX_SOURCE: "config/crd/bases/source.toolkit.fluxcd.io_*repositories.yaml",
}
SHOWN = [
    *(MANIFESTS / "clouds").glob("*.yaml"),
    MANIFESTS / "gitops" / "flux.yaml",
    MANIFESTS / "gitops" / "flux-pipeline.yaml",
    MANIFESTS / "gitops" / "flux-release.yaml",
]
GROUPS = ("karpenter.", "external-secrets.io", "kustomize.toolkit", "source.toolkit")
OBJECTS = [
    one
    for path in SHOWN
    for one in yaml.safe_load_all(path.read_text())
    if one["apiVersion"].startswith(GROUPS)
]


@pytest.fixture(scope="module")
def kubectl(fake_cluster: Cluster) -> Iterator[Kubectl]:
    """kubectl of a cluster that serves their kinds, for as long as these tests run."""
    try:
        files = [str(one) for module, name in FILES.items() for one in _found(module, name)]
    except BuildError as error:
        pytest.skip(f"cannot run here: {error}")
    mine = fake_cluster.kubectl
    named = [part for one in files for part in ("-f", one)]
    mine("apply", "--server-side", *named)
    try:
        mine.wait("--for=condition=Established", *named)
        yield mine
    finally:
        mine("delete", *named)


def _found(module: Any, pattern: str) -> list[Path]:
    folder, name = pattern.rsplit("/", 1)
    return sorted((build.fetch(module) / folder).glob(name))


def test_what_is_shown_is_of_each_project():
    kinds = {one["kind"] for one in OBJECTS}
    assert kinds == {
        *("EC2NodeClass", "NodePool", "SecretStore", "ExternalSecret"),
        *("GitRepository", "OCIRepository", "Kustomization"),
    }


@pytest.mark.parametrize(
    "shown", OBJECTS, ids=lambda one: f"{one['kind']}/{one['metadata']['name']}"
)
def test_its_own_definition_takes_it(kubectl: Kubectl, shown: dict[str, Any]):
    namespace = shown["metadata"].get("namespace")
    if namespace:
        shown = {**shown, "metadata": {**shown["metadata"], "namespace": "default"}}
    arguments = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
    kubectl(*arguments, stdin=yaml.safe_dump(shown))
