"""Clusters for tests: one control plane with fake nodes, and one with real nodes, each started once when asked for."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster.commands import Options
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster, Shape
from cluster.providers import Cluster, open_cluster
from cluster.skips import or_skip
from namespaces import in_namespace


@pytest.fixture(scope="session")
def fake_cluster() -> Iterator[Cluster]:
    """A control plane and two fake nodes of eight GPUs; pods become Ready without containers."""
    shape = Shape(fake_nodes=2, options=Options(audit="Metadata"))
    with or_skip(), open_cluster(shape) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_cluster() -> Iterator[Cluster]:
    """A control plane and two real nodes with containerd, DNS and Services."""
    with or_skip(), open_cluster(Shape(fake_nodes=0, real_nodes=2)) as cluster:
        yield cluster


@pytest.fixture
def local_cluster(fake_cluster: Cluster) -> LocalCluster:
    """The fake-node cluster's processes, to be killed and restarted."""
    if fake_cluster.local is None:
        pytest.skip("cannot run here: only the local provider's processes may be killed")
    return fake_cluster.local


@pytest.fixture
def real_local_cluster(real_cluster: Cluster) -> LocalCluster:
    """The real-node cluster's processes, to be killed and restarted."""
    if real_cluster.local is None:
        pytest.skip("cannot run here: only the local provider's nodes may be lost")
    return real_cluster.local


@pytest.fixture
def fake(fake_cluster: Cluster) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own, on fake nodes."""
    with in_namespace(fake_cluster.kubectl) as mine:
        yield mine


@pytest.fixture
def real(real_cluster: Cluster) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own, on real nodes."""
    with in_namespace(real_cluster.kubectl) as mine:
        yield mine
