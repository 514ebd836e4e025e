"""What real nodes need beside the control plane: DNS on the bridge, and a StorageClass for volumes made by hand."""

import urllib.error
import urllib.request

from cluster import build
from cluster.control import processes
from cluster.control.ports import find_free_port
from cluster.instance import Instance
from cluster.kubectl import Kubectl
from cluster.nodes.network import Network

STORAGE_CLASS = "rollout-static"
READ = ["list", "watch"]
DNS_RULES = [
    {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": READ},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": READ},
]
RBAC = "rbac.authorization.k8s.io"


def start(instance: Instance, kubectl: Kubectl, network: Network) -> None:
    """Start DNS and wait for it; make the StorageClass."""
    kubectl.apply(*_build_dns_access(), build_storage_class())
    port = find_free_port()
    corefile = instance.root / "Corefile"
    corefile.write_text(_render_corefile(instance, network, port))
    process = instance.start("coredns", [str(build.path("coredns")), "-conf", str(corefile)])
    processes.wait_ready(
        process,
        lambda: processes.listens(process, port) and _answers(f"http://127.0.0.1:{port}/ready"),
        "ready",
    )


def build_storage_class() -> dict:
    """The default StorageClass: claims wait for a volume that somebody made."""
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS, "annotations": default},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def build_volume(name: str, folder: str, *, size: str = "1Gi") -> dict:
    """A volume over a folder of this machine: the same from every node, for one or many of them."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "hostPath": {"path": folder, "type": "DirectoryOrCreate"},
        },
    }


def _build_dns_access() -> tuple[dict, dict]:
    named = {"metadata": {"name": "test-coredns"}, "apiVersion": f"{RBAC}/v1"}
    role = {"kind": "ClusterRole", "rules": DNS_RULES}
    binding = {
        "kind": "ClusterRoleBinding",
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "test-coredns"},
        "subjects": [{"kind": "User", "name": "coredns", "apiGroup": RBAC}],
    }
    return named | role, named | binding


def _render_corefile(instance: Instance, network: Network, port: int) -> str:
    return f""".:53 {{
  bind {network.host}
  errors
  ready 127.0.0.1:{port}
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {instance.pki / "coredns.kubeconfig"}
    pods verified
    ttl 1
  }}
}}
"""


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # short: asked again
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
