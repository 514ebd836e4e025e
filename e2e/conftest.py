"""Clusters for tests: one control plane with fake nodes, and one with real nodes, each started once when asked for."""

import secrets
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster.commands import Options
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster, Shape
from cluster.providers import Cluster, open_cluster
from cluster.skips import or_skip


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
    yield from _in_namespace(fake_cluster.kubectl)


@pytest.fixture
def real(real_cluster: Cluster) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own, on real nodes."""
    yield from _in_namespace(real_cluster.kubectl)


def _in_namespace(kubectl: Kubectl) -> Iterator[Kubectl]:
    name = f"test-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    mine = replace(kubectl, namespace=name)
    mine.wait("--for=create", "serviceaccount/default")
    yield mine
    kubectl("delete", "namespace", name, "--wait=false")
