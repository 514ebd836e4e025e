"""A control plane with fake nodes for each file, Kueue in it, and an operator with its rights and no other."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "operator"))
sys.path.insert(0, str(Path(__file__).parent))

from kueue_manager import running
from kueue_objects import (
    SPOT,
    build_cluster_queue,
    build_flavor,
    build_local_queue,
    build_priority,
)
from operators import Operator, operating
from puppets import Puppets
from queue_stage import Stage

from cluster.commands import Options
from cluster.control.ports import find_free_port
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster, Shape
from cluster.providers import Cluster, open_cluster
from cluster.skips import or_skip
from namespaces import in_namespace
from runs import install_crds

RUNTIME = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "ClusterRolloutRuntime",
    "metadata": {"name": "default"},
    "spec": {
        "acceleratorClasses": [{"name": "h100", "memory": "80Gi", "perNode": 8}],
        "roles": {"coordinator": {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}},
        "storage": {"ledger": {"postgres": {"secretRef": {"name": "ledger", "key": "dsn"}}}},
        "allowed": {"annotations": ["kueue.x-k8s.io/"], "priorityClasses": ["of-pods"]},
        "allowedNamespaces": {"from": "All"},
    },
}
"""No volume: fake nodes have none. Kueue places only pods that request what a queue covers."""
GRACE_SECONDS = 120
"""A fake node that is late on a busy machine is not lost: nobody would make its pods ready again."""
LEDGER = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "ledger"},
    "stringData": {"dsn": "postgresql://nobody@nowhere/none"},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two fake nodes of eight devices, the second one spot and tainted."""
    options = Options(audit="Metadata", node_grace_seconds=GRACE_SECONDS)
    with or_skip(), open_cluster(Shape(fake_nodes=2, options=options)) as made:
        if made.local is None:
            pytest.skip("cannot run here: only the local provider runs Kueue as a process")
        install_crds(made.kubectl)
        made.kubectl.apply(RUNTIME)
        made.kubectl("label", "node", "fake-0", "pool=reserved")
        made.kubectl("label", "node", "fake-1", "pool=spot")
        made.kubectl("taint", "node", "fake-1", "spot=true:NoSchedule")
        yield made


@pytest.fixture(scope="module")
def local(cluster: Cluster) -> LocalCluster:
    assert cluster.local is not None
    return cluster.local


@pytest.fixture(scope="module")
def kueue(local: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Kueue, managing, with a reserved flavor, a spot flavor and two priorities."""
    with or_skip(), running(local, tmp_path_factory.mktemp("kueue")) as manager:
        local.kubectl.apply(
            build_flavor("reserved", nodeLabels={"pool": "reserved"}),
            build_flavor("spot", nodeLabels={"pool": "spot"}, tolerations=[SPOT]),
            build_priority("low", 10),
            build_priority("high", 1000),
        )
        yield manager


@pytest.fixture(scope="module")
def operator(
    cluster: Cluster, kueue: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    log = tmp_path_factory.mktemp("operator") / "log"
    with operating(cluster.kubectl.kubeconfig, find_free_port(), log) as process:
        yield process


@pytest.fixture
def bare(cluster: Cluster) -> Iterator[Kubectl]:
    """A namespace with the Secret that its runs name."""
    with in_namespace(cluster.kubectl) as mine:
        mine.apply(LEDGER)
        yield mine


@pytest.fixture
def idle(bare: Kubectl) -> Puppets:
    """Nobody plays the kubelet: kwok does."""
    return Puppets(
        api=client.CoreV1Api(config.new_client_from_config(str(bare.kubeconfig))),
        namespace=bare.namespace,
    )


@pytest.fixture
def stage(bare: Kubectl, idle: Puppets, operator: Operator) -> Stage:
    return Stage(kubectl=bare, puppets=idle, operator=operator)


@pytest.fixture
def queue(bare: Kubectl, kueue: Any) -> Any:
    """Makes the namespace's queue of so many devices of a flavor."""

    def make(devices: int, flavor: str = "reserved") -> None:
        bare.apply(
            build_cluster_queue(bare.namespace, bare.namespace, flavor, devices),
            build_local_queue(bare.namespace),
        )

    yield make
    bare("delete", "clusterqueue", bare.namespace, "--ignore-not-found", "--wait=false")
