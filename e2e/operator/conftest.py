"""A control plane without nodes for the session, an operator for each file, a namespace for each test."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kubernetes import client, config

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.append(str(Path(__file__).parents[2] / "tests" / "docs"))

from operators import Operator, operating
from puppets import Puppets
from stage import World

from cluster.commands import Options
from cluster.control.ports import find_free_port
from cluster.errors import ClusterError
from cluster.kubectl import Kubectl
from cluster.local import Shape
from cluster.providers import Cluster, open_cluster
from cluster.skips import or_skip
from namespaces import in_namespace
from runs import RUNTIME, STORAGE, install_crds
from waiting import wait_until

GONE_SECONDS = 60.0
AUDIT_MEGABYTES_MAX = 4000
"""A log that is begun anew would take away what a test has not read yet."""
GPUS = {"name": "fake", "memory": "80Gi", "perNode": 8, "resourceName": "nvidia.com/gpu"}


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """An API server with our kinds, a runtime and a StorageClass; no nodes."""
    flags = (f"--audit-log-maxsize={AUDIT_MEGABYTES_MAX}",)
    options = Options(audit="Metadata", api_server_flags=flags)
    shape = Shape(fake_nodes=0, options=options)
    with or_skip(), open_cluster(shape) as cluster:
        install_crds(cluster.kubectl)
        cluster.kubectl.apply(RUNTIME, STORAGE)
        yield cluster


@pytest.fixture(scope="module")
def operator(
    control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    log = tmp_path_factory.mktemp("operator") / "log"
    with operating(control_plane.kubectl.kubeconfig, find_free_port(), log) as process:
        yield process


@pytest.fixture
def bare(control_plane: Cluster) -> Iterator[Kubectl]:
    """A namespace; nobody operates."""
    with in_namespace(control_plane.kubectl) as mine:
        yield mine
        _delete_runs(mine)


def _delete_runs(kubectl: Kubectl) -> None:
    """Before their namespace, which takes its time: the next test's operator would work on them, and be counted."""
    with suppress(ClusterError, AssertionError):  # where nobody answers, or nobody lets them go
        kubectl.delete_all("rolloutruns")
        wait_until(lambda: not kubectl.get("rolloutruns")["items"], "no run is left", GONE_SECONDS)


@pytest.fixture(scope="module")
def with_our_kinds(fake_cluster: Cluster) -> Kubectl:
    """The cluster of fake nodes with our kinds, whatever a file before has taken away."""
    install_crds(fake_cluster.kubectl)
    return fake_cluster.kubectl


@pytest.fixture
def on_nodes(with_our_kinds: Kubectl) -> Iterator[Kubectl]:
    """A namespace on fake nodes, with a runtime of its name and a Secret `dsn` for ledgers; nobody operates."""
    kubectl = with_our_kinds
    with in_namespace(kubectl) as mine:
        served = {"allowedNamespaces": {"from": "Names", "names": [mine.namespace]}}
        spec = {**served, "acceleratorClasses": [GPUS]}
        runtime = {"metadata": {"name": mine.namespace}, "spec": spec}
        kubectl.apply(RUNTIME | runtime)
        mine("create", "secret", "generic", "dsn", "--from-literal=dsn=postgresql://nowhere/x")
        yield mine
        _delete_runs(mine)
        kubectl("delete", "clusterrolloutruntime", mine.namespace)


@pytest.fixture
def puppets(bare: Kubectl) -> Iterator[Puppets]:
    api = client.CoreV1Api(config.new_client_from_config(str(bare.kubeconfig)))
    playing = Puppets(api=api, namespace=bare.namespace)
    playing.start()
    yield playing
    playing.stop()


@pytest.fixture
def world(bare: Kubectl, puppets: Puppets, operator: Operator) -> World:
    return World(kubectl=bare, puppets=puppets, operator=operator)
