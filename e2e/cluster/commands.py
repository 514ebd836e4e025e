"""The command lines of the control plane, as pure functions of where everything is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster import build
from cluster.control.ports import LOOPBACK

SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
ISSUER = "https://kubernetes.default.svc.cluster.local"
QUERIES_PER_SECOND = {"kube-api-qps": 300, "kube-api-burst": 600}
"""The default of 20 costs seconds until the first service account exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of one control plane, all of them free when it starts."""

    etcd: int
    etcd_peer: int
    api_server: int
    controller_manager: int
    scheduler: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a test may want otherwise.

    Attributes:
        address: where the API server listens; a bridge's address when there are real nodes.
        audit: level of the audit log (Metadata, Request, RequestResponse); empty: no log.
        feature_gates: `Name=true` or `Name=false`.
        controllers: as kube-controller-manager's flag, e.g. `*,-statefulset`.
        node_grace_seconds: silence of a node until it is NotReady; under 10 was never tried.
        api_server_flags: further flags, whole.
    """

    address: str = LOOPBACK
    audit: str = ""
    feature_gates: tuple[str, ...] = ()
    controllers: str = "*"
    node_grace_seconds: int = 10
    api_server_flags: tuple[str, ...] = ()


def build_etcd(root: Path, ports: Ports) -> list[str]:
    """A store that never fsyncs."""
    return [
        str(build.path("etcd")),
        f"--data-dir={root / 'etcd'}",
        f"--client-url=http://{LOOPBACK}:{ports.etcd}",
        f"--peer-url=http://{LOOPBACK}:{ports.etcd_peer}",
        "--unsafe-no-fsync",
    ]


def build_api_server(root: Path, ports: Ports, options: Options) -> list[str]:
    """Node and RBAC authorization, webhooks and aggregated APIs by endpoint address."""
    pki = root / "pki"
    flags = {
        "etcd-servers": f"http://{LOOPBACK}:{ports.etcd}",
        "bind-address": options.address,
        "advertise-address": options.address,
        "secure-port": ports.api_server,
        # a loopback address may not be an endpoint of the `kubernetes` Service
        "endpoint-reconciler-type": "none" if options.address == LOOPBACK else "lease",
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "client-ca-file": pki / "ca.crt",
        "kubelet-client-certificate": pki / "kubelet-client.crt",
        "kubelet-client-key": pki / "kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP",
        "service-account-issuer": ISSUER,
        "service-account-signing-key-file": pki / "service-accounts.key",
        "service-account-key-file": pki / "service-accounts.crt",
        "service-cluster-ip-range": SERVICE_CIDR,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "enable-aggregator-routing": "true",  # spares the host a kube-proxy
        "allow-privileged": "true",
        "profiling": "false",
    }
    if options.audit:
        flags |= {
            "audit-policy-file": root / "audit.json",
            "audit-log-path": root / "log" / "audit.log",
        }
    command = _command("kube-apiserver", flags, options)
    return [*command, *options.api_server_flags]


def build_controller_manager(root: Path, ports: Ports, options: Options) -> list[str]:
    """Every controller that `options` asks for, quick to see a node lost, a scale changed and a kind that a quota counts."""
    pki = root / "pki"
    flags = {
        "kubeconfig": pki / "controller-manager.kubeconfig",
        "bind-address": LOOPBACK,
        "secure-port": ports.controller_manager,
        "use-service-account-credentials": "true",
        "service-account-private-key-file": pki / "service-accounts.key",
        "root-ca-file": pki / "ca.crt",
        "leader-elect": "false",
        "node-monitor-period": "1s",
        "node-monitor-grace-period": f"{options.node_grace_seconds}s",
        "horizontal-pod-autoscaler-sync-period": "2s",
        "resource-quota-sync-period": "10s",  # one of a kind that came after the start waits for it
        "controllers": options.controllers,
        **QUERIES_PER_SECOND,
    }
    return _command("kube-controller-manager", flags, options)


def build_scheduler(root: Path, ports: Ports, options: Options) -> list[str]:
    """The default scheduler."""
    flags = {
        "kubeconfig": root / "pki" / "scheduler.kubeconfig",
        "bind-address": LOOPBACK,
        "secure-port": ports.scheduler,
        "leader-elect": "false",
        **QUERIES_PER_SECOND,
    }
    return _command("kube-scheduler", flags, options)


def build_audit_policy(level: str) -> dict:
    """One line per request at `level`, none for its arrival."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": level}],
    }


def _command(binary: str, flags: Mapping[str, object], options: Options) -> list[str]:
    gates = [f"--feature-gates={','.join(options.feature_gates)}"] if options.feature_gates else []
    return [
        str(build.path(binary)),
        *(f"--{name}={value}" for name, value in flags.items()),
        *gates,
    ]
