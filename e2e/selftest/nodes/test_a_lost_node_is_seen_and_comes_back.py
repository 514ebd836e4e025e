"""A silent kubelet, a lost machine, an out-of-service taint: what Kubernetes does, and what it does not do.

Quick: test_a_node_that_comes_back_has_its_images.py for the cluster's part.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster.kubectl import Kubectl
from cluster.local import LocalCluster
from objects import build_pod, build_stateful_set
from waiting import wait_until

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.kit]

SHORT = [
    {
        "key": f"node.kubernetes.io/{reason}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 3,
    }
    for reason in ("unreachable", "not-ready")
]
NOT_READY = "--for=condition=Ready=Unknown"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service=lost:NoExecute"


def test_a_silent_kubelet_makes_its_node_unknown_and_its_containers_go_on(
    real: Kubectl, real_local_cluster: LocalCluster
):
    _, node = real_local_cluster.nodes
    on_it = {"nodeSelector": {"kubernetes.io/hostname": node.name}, "tolerations": SHORT}
    real.apply(build_stateful_set("stays", 1, build_pod("stays", **on_it)))
    real("rollout", "status", "statefulset/stays", "--timeout=120s")
    before = uid_of(real, "stays-0")

    with real_local_cluster.silent(node):
        real.wait(NOT_READY, f"node/{node.name}")
        real.wait("--for=jsonpath={.metadata.deletionTimestamp}", "pod/stays-0")
        assert uid_of(real, "stays-0") == before
        assert "sleep" in node.run("ps", "-e", "-o", "args")

    wait_until(lambda: uid_of(real, "stays-0") not in {before, ""}, "another stays-0 is there")
    real.wait("--for=condition=Ready", "pod/stays-0")


def test_a_lost_machine_gives_up_its_pods_only_when_it_is_out_of_service(
    real: Kubectl, real_local_cluster: LocalCluster
):
    first, node = real_local_cluster.nodes
    template = build_pod("moves", tolerations=SHORT)
    with cordoned(real, first.name):
        real.apply(build_stateful_set("moves", 1, template))
        real("rollout", "status", "statefulset/moves", "--timeout=120s")
    before = uid_of(real, "moves-0")

    with real_local_cluster.lost(node):
        real.wait(NOT_READY, f"node/{node.name}")
        real.wait("--for=jsonpath={.metadata.deletionTimestamp}", "pod/moves-0")
        assert uid_of(real, "moves-0") == before
        real("taint", "node", node.name, OUT_OF_SERVICE)

        real.wait(f"--for=jsonpath={{.spec.nodeName}}={first.name}", "pod/moves-0")
        real.wait("--for=condition=Ready", "pod/moves-0")


@contextmanager
def cordoned(kubectl: Kubectl, node: str) -> Iterator[None]:
    """No new pod goes to the node for a block."""
    kubectl("cordon", node)
    try:
        yield
    finally:
        kubectl("uncordon", node)


def uid_of(kubectl: Kubectl, pod: str) -> str:
    """Empty while there is no such pod."""
    found = kubectl.get("pods", f"--field-selector=metadata.name={pod}")["items"]
    return found[0]["metadata"]["uid"] if found else ""
