"""Fake nodes: pods on them become Ready without containers. For controller logic only.

kwok's binary has no stages of its own, so those of its module are passed to it. Only nodes that carry the annotation
are kwok's: real nodes of the same cluster are left alone.
"""

from pathlib import Path

from cluster import build, pins
from cluster.errors import StartError
from cluster.instance import Instance
from cluster.kubectl import Kubectl

STAGES = ("node/fast/node-*.yaml", "node/heartbeat-with-lease/node-*.yaml", "pod/fast/pod-*.yaml")
RESOURCES = {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
ANNOTATION = "kwok.x-k8s.io/node"
TAINT = {"key": "kwok", "value": "fake", "effect": "NoSchedule"}


def start(instance: Instance, kubectl: Kubectl, count: int, *, tainted: bool) -> None:
    """Start kwok with `count` fake nodes of eight GPUs each; `tainted` where real nodes exist too."""
    build.ensure(pins.FAKE_NODES)
    stages = build.folder("kwok") / "kustomize" / "stage"
    files = [file for pattern in STAGES for file in sorted(stages.glob(pattern))]
    if not files:
        raise StartError(f"no kwok stages in {stages}: delete {stages.parent.parent}, build again")
    instance.start("kwok", _command(instance, files))
    kubectl.apply(*(build_node(f"fake-{index}", tainted=tainted) for index in range(count)))
    kubectl.wait("--for=condition=Ready", "node", "-l", "type=kwok")


def build_node(name: str, *, tainted: bool) -> dict:
    """A fake node, spread over two zones by its number's parity."""
    zone = "ab"[int(name.rpartition("-")[2]) % 2]
    labels = {"type": "kwok", "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {ANNOTATION: "fake"}, "labels": labels},
        "spec": {"taints": [TAINT]} if tainted else {},
        "status": {"allocatable": RESOURCES, "capacity": RESOURCES},
    }


def _command(instance: Instance, stages: list[Path]) -> list[str]:
    return [
        str(build.path("kwok")),
        f"--kubeconfig={instance.pki / 'kwok.kubeconfig'}",
        f"--manage-nodes-with-annotation-selector={ANNOTATION}=fake",
        "--cidr=10.250.0.0/16",
        "--node-ip=127.0.0.1",
        # renewed every quarter of it: often enough for a node-monitor-grace-period of 10 s
        "--node-lease-duration-seconds=8",
        *(f"--config={file}" for file in stages),
    ]
