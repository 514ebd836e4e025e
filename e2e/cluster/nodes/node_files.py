"""The configuration of one node's services, as pure functions of where everything is."""

import json
from dataclasses import dataclass
from pathlib import Path

from cluster import build
from cluster.nodes import images
from cluster.nodes.network import Network

SETTINGS_OF_KUBELET = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
"""Machine-wide settings that a kubelet writes when they differ; it is shown these values instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Where one node lives: its name, number, folder, cgroup and the cluster's network and keys."""

    name: str
    number: int
    folder: Path
    cgroup: str
    network: Network
    pki: Path


def render_all(place: NodePlace) -> dict[str, str]:
    """Every file of a node by its name (JSON is YAML)."""
    return {
        "containerd.toml": _render_containerd(),
        "kubelet.yaml": json.dumps(_build_kubelet(place), indent=1),
        "kube-proxy.yaml": json.dumps(_build_kube_proxy(place), indent=1),
        "10-rollout.conflist": json.dumps(_build_cni(place), indent=1),
        "resolv.conf": f"nameserver {place.network.host}\n",
        "sysctl": "".join(f"{name} {value}\n" for name, value in SETTINGS_OF_KUBELET.items()),
    }


def _render_containerd() -> str:
    return f"""version = 3
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{images.PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_experimental_restore_via_create = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{build.folder("bridge")}"]
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{build.path("runc")}"
      SystemdCgroup = false
"""


def _build_kubelet(place: NodePlace) -> dict:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{place.cgroup}",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(place.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [place.network.host],
        "clusterDomain": "cluster.local",
        "resolvConf": str(place.folder / "etc" / "resolv.conf"),
        # without CAP_SYS_RESOURCE limits and scores can only be lowered
        "maxOpenFiles": 20000,
        "oomScoreAdj": 0,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        # images cannot be pulled again
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        # what a ConfigMap or Secret says reaches a pod's files when the kubelet looks at the pod: a minute by default
        "syncFrequency": "5s",
        # a lease renewed every 2 s fits a node-monitor-grace-period of 10 s
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "10s",
        "nodeLeaseDurationSeconds": 8,
    }


def _build_kube_proxy(place: NodePlace) -> dict:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": place.network.pods,
        "clientConnection": {"kubeconfig": str(place.pki / "kube-proxy.kubeconfig")},
        "hostnameOverride": place.name,
        "oomScoreAdj": 0,
        # these settings are read-only in a network namespace
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }


def _build_cni(place: NodePlace) -> dict:
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": place.network.pods_of(place.number)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "rollout", "plugins": [bridge, ports]}
