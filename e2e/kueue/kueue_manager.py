"""Kueue's own manager as a process of this machine: its definitions, webhooks and certificates as it ships them.

Its webhooks stay behind their Service; that has an address of this machine, because an address of loopback may not be
an endpoint. The certificate is Kueue's own: what the kubelet does, putting the Secret into files, is done here.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import yamls
from cluster import build, pins
from cluster.control.ports import LOOPBACK, find_free_ports
from cluster.errors import CannotRunHereError, ClusterError, StartError
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster

NAMESPACE = "kueue-system"
SERVICE = "kueue-webhook-service"
SECRET = "kueue-webhook-server-cert"
READY_SECONDS_MAX = 180.0
FRAMEWORKS = ["batch/job", "pod", "deployment", "statefulset"]
LEFT_OUT = {"Deployment", "APIService", "FlowSchema", "PriorityLevelConfiguration"}
"""The manager is a process here; its visibility server, which only shows queues, is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kueue:
    """A running manager. ``health`` is its address."""

    cluster: LocalCluster
    health: str

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"{self.health}/readyz", timeout=5
            ) as answer:  # short: asked again
                return answer.status == 200
        except OSError:
            return False

    def log(self) -> str:
        return self.cluster.instance.processes()["kueue"].tail()


def install(kubectl: Kubectl, address: str, port: int) -> None:
    """Everything of Kueue's default manifests but its Deployment. ``port`` is its webhooks'."""
    text = kubectl("kustomize", str(build.folder("kueue") / "config" / "default"))
    found = [one for one in yamls.read_all(text) if one and one["kind"] not in LEFT_OUT]
    objects = [one for one in found if one["kind"] != "Service"]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    document = {"apiVersion": "v1", "kind": "List", "items": [namespace, *objects]}
    everywhere = _anywhere(kubectl)
    everywhere("apply", "--server-side", "-f", "-", stdin=json.dumps(document))
    everywhere.apply(*_service(address, port))
    everywhere("wait", "--for=condition=Established", "crd/workloads.kueue.x-k8s.io")


@contextmanager
def running(cluster: LocalCluster, scratch: Path, **configuration: Any) -> Iterator[Kueue]:
    """Kueue installed and managing, for a block. ``configuration`` is laid over the manager's."""
    build.ensure(pins.KUEUE)
    address = own_address()
    webhook, health = find_free_ports([address, LOOPBACK])
    install(cluster.kubectl, address, webhook)
    folder = scratch / "certificates"
    folder.mkdir()
    settings = scratch / "kueue.yaml"
    settings.write_text(json.dumps(_settings(address, webhook, health, folder) | configuration))
    mounting = Mounting(kubectl=_anywhere(cluster.kubectl), folder=folder)
    mounting.start()
    binary = str(build.path("kueue"))
    command = [binary, f"--config={settings}", f"--kubeconfig={cluster.kubectl.kubeconfig}"]
    cluster.instance.start("kueue", [*command, "--zap-log-level=2"])
    kueue = Kueue(cluster=cluster, health=f"http://{LOOPBACK}:{health}")
    try:
        _wait_until_ready(kueue)
        yield kueue
    finally:
        mounting.stop()
        cluster.instance.stop("kueue")


def own_address() -> str:
    """An address of this machine that is not loopback. Raises CannotRunHereError."""
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family.name == "AF_INET" and name != "lo" and not _special(one.address):
                return one.address
    raise CannotRunHereError("no network address but loopback: Kueue's webhooks need one")


def _special(address: str) -> bool:
    return address.startswith(("127.", "169.254.", "224."))


def _anywhere(kubectl: Kubectl) -> Kubectl:
    return Kubectl(binary=kubectl.binary, kubeconfig=kubectl.kubeconfig, namespace="")


def _settings(address: str, webhook: int, health: int, folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"{LOOPBACK}:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": address, "port": webhook, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {
            "enable": True,
            "webhookServiceName": SERVICE,
            "webhookSecretName": SECRET,
        },
        "clientConnection": {"qps": 200, "burst": 400},
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": {"frameworks": FRAMEWORKS},
    }


def _service(address: str, port: int) -> list[dict[str, Any]]:
    meta = {"name": SERVICE, "namespace": NAMESPACE}
    labels = {"kubernetes.io/service-name": SERVICE}
    named = {"name": "https", "protocol": "TCP"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"ports": [{**named, "port": 443, "targetPort": port}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**meta, "labels": labels},
            "addressType": "IPv4",
            "ports": [{**named, "port": port}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
    ]


def _wait_until_ready(kueue: Kueue) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while not kueue.is_ready():
        process = kueue.cluster.instance.processes()["kueue"]
        if process.handle() is None or time.monotonic() > deadline:
            raise StartError(f"Kueue did not start:\n{kueue.log()}")
        time.sleep(0.2)


@dataclass(slots=True, kw_only=True)
class Mounting:
    """Keeps the files of a folder as the Secret has them."""

    kubectl: Kubectl
    folder: Path
    _stop: threading.Event | None = None
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        assert self._stop is not None and self._thread is not None
        self._stop.set()
        self._thread.join(30)

    def _play(self) -> None:
        assert self._stop is not None
        while not self._stop.wait(0.5):  # short: a poll
            for name, text in self._read().items():
                path, value = self.folder / name, base64.b64decode(text)
                if not path.exists() or path.read_bytes() != value:
                    path.write_bytes(value)

    def _read(self) -> dict[str, str]:
        """The Secret's keys; none while it, or the API server, is away."""
        try:
            return self.kubectl.get("secret", SECRET, "-n", NAMESPACE).get("data") or {}
        except ClusterError:
            return {}
