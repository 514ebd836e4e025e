"""A cluster of real nodes with Flux beside it, a bucket that its pods reach, and a repository that Flux reads."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
sys.path.insert(0, str(Path(__file__).parent))

from bucket import Bucket, serving
from flux_controllers import Flux, reconciling
from served_git import Repository, serving_git

from cluster.errors import BuildError
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster, Shape
from cluster.nodes import containers
from cluster.providers import open_cluster
from cluster.skips import or_skip

SYSTEM = "rollout-system"
"""Where Flux's objects stand, as in `manifests/gitops`."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two real nodes with the workers' image, and nothing of ours in it."""
    with or_skip(BuildError):
        worker = containers.ensure_worker()
    with or_skip(), open_cluster(Shape(fake_nodes=0, real_nodes=2)) as made:
        if made.local is None:
            pytest.skip("cannot run here: images and volumes are handed to nodes of our own")
        made.import_image(worker)
        yield made.local


@pytest.fixture(scope="module")
def flux(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flux]:
    mine = Kubectl(
        binary=cluster.kubectl.binary, kubeconfig=cluster.kubectl.kubeconfig, namespace=SYSTEM
    )
    with or_skip(BuildError), reconciling(cluster, tmp_path_factory.mktemp("flux"), mine) as made:
        yield made


@pytest.fixture(scope="module")
def bucket(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with serving(cluster, tmp_path_factory.mktemp("s3")) as made:
        yield made


@pytest.fixture(scope="module")
def git(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with or_skip(), serving_git(tmp_path_factory.mktemp("git")) as made:
        yield made
