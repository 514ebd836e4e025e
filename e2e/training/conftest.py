"""Real nodes with an operator on them for the session; a namespace and a volume for each module."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from installation import install, wait_for_operator
from watched import Stage

from cluster.errors import BuildError
from cluster.local import LocalCluster
from cluster.nodes.addons import build_volume
from cluster.providers import Cluster
from cluster.skips import or_skip
from namespaces import in_namespace


@pytest.fixture(scope="session")
def operated(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> LocalCluster:
    """A cluster of real nodes with our kinds, a runtime and the operator in a pod."""
    if real_cluster.local is None:
        pytest.skip("cannot run here: images and volumes are handed to nodes of our own")
    cache = tmp_path_factory.mktemp("models")
    cache.chmod(0o777)
    with or_skip(BuildError):
        install(real_cluster, cache)
    return real_cluster.local


@pytest.fixture(scope="module")
def stage(operated: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    wait_for_operator(operated.kubectl)
    folder = tmp_path_factory.mktemp("ledger")
    folder.chmod(0o777)
    with in_namespace(operated.kubectl) as mine:
        operated.kubectl.apply(build_volume(mine.namespace, str(folder), size="10Gi"))
        yield Stage(kubectl=mine, cluster=operated)
