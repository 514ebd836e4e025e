"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes, ready in seconds.

Every port is free when it is chosen, and readiness asks that this very process listens on it: a second cluster on the
ports of a first one would otherwise quietly use the first one's store.
"""

import json
import signal
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from cluster import build, commands, pins
from cluster.commands import API_SERVICE_ADDRESS, Options, Ports
from cluster.control import processes
from cluster.control.pki import (
    Authority,
    build_authority,
    build_signing_pair,
    render_kubeconfig,
    write_private,
)
from cluster.control.ports import LOOPBACK, find_free_ports
from cluster.control.processes import Process
from cluster.errors import StartError
from cluster.instance import Instance

PORT_ATTEMPTS_MAX = 3
ANSWER_SECONDS_MAX = 30.0
SYSTEM_USERS = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "kube-proxy": ("system:kube-proxy", ""),
    "coredns": ("coredns", ""),
    "kwok": ("kwok", "system:masters"),
}


class ControlPlane:
    """A running control plane: restart it, pause it, ask where it is."""

    def __init__(self, instance: Instance, options: Options) -> None:
        self.instance = instance
        self.options = options
        self.ports = _free_ports(options.address)
        self.authority = build_authority()

    @property
    def server(self) -> str:
        """The API server's address."""
        return f"https://{self.options.address}:{self.ports.api_server}"

    def start(self) -> None:
        """Start everything and wait until a pod could be created.

        Raises:
            StartError: a process ended or never became ready; the log's end is in the message.
        """
        build.ensure(pins.CONTROL_PLANE)
        self._start_store_somewhere()
        self._write_pki()
        self.start_api_server()
        self._start_controllers()
        scheduler = commands.build_scheduler(self.instance.root, self.ports, self.options)
        self.instance.start("scheduler", scheduler)
        port = self.ports.scheduler
        self._wait("scheduler", port, f"https://{LOOPBACK}:{port}/healthz")
        self._wait(
            "controller-manager",
            self.ports.controller_manager,
            f"{self.server}/api/v1/namespaces/default/serviceaccounts/default",
        )
        self.instance.remember(server=self.server)

    def start_api_server(self) -> Process:
        """Start the API server (again) and wait for it."""
        command = commands.build_api_server(self.instance.root, self.ports, self.options)
        process = self.instance.start("api-server", command)
        self._wait("api-server", self.ports.api_server, f"{self.server}/readyz")
        return process

    def kill_api_server(self) -> None:
        """End the API server at once; `start_api_server` brings it back on the same port."""
        self.instance.stop("api-server")

    def restart_controllers(self) -> None:
        """Have Kubernetes' controllers look at once: after an outage they would pause for up to half a minute."""
        self.instance.stop("controller-manager")
        self._start_controllers()

    def _start_controllers(self) -> None:
        command = commands.build_controller_manager(self.instance.root, self.ports, self.options)
        self.instance.start("controller-manager", command)
        port = self.ports.controller_manager
        self._wait("controller-manager", port, f"https://{LOOPBACK}:{port}/healthz")

    def pause_api_server(self) -> None:
        """Stop the API server from answering while its connections stay open."""
        self.instance.processes()["api-server"].signal(signal.SIGSTOP)

    def resume_api_server(self) -> None:
        """Undo `pause_api_server`."""
        self.instance.processes()["api-server"].signal(signal.SIGCONT)

    def kill_store(self) -> None:
        """End etcd at once; `start_store` brings it back with what it has written."""
        self.instance.stop("etcd")

    def start_store(self) -> None:
        """Start etcd (again) and wait until it listens."""
        command = commands.build_etcd(self.instance.root, self.ports)
        process = self.instance.start("etcd", command)
        port = self.ports.etcd
        processes.wait_ready(process, lambda: processes.listens(process, port), "listening")

    def kubeconfig(self, user: str, group: str = "", server: str = "") -> str:
        """A kubeconfig for any user and group, signed by the cluster's own authority."""
        pair = self.authority.issue(user, group)
        return render_kubeconfig(server or self.server, self.authority.pem, pair)

    def _start_store_somewhere(self) -> None:
        for _ in range(PORT_ATTEMPTS_MAX - 1):
            try:
                self.start_store()
            except StartError:  # another process took a port since it was chosen
                self.ports = _free_ports(self.options.address)
            else:
                return
        self.start_store()

    def _write_pki(self) -> None:
        pki = self.instance.pki
        write_private(pki / "ca.crt", self.authority.pem)
        _issue_servers(self.authority, self.options.address, pki)
        build_signing_pair().write(pki, "service-accounts")
        for name, (user, group) in SYSTEM_USERS.items():
            write_private(pki / f"{name}.kubeconfig", self.kubeconfig(user, group).encode())
        policy = commands.build_audit_policy(self.options.audit or "None")
        (self.instance.root / "audit.json").write_text(json.dumps(policy))

    def _wait(self, name: str, port: int, url: str) -> None:
        process = self.instance.processes()[name]
        context = _client_context(self.instance)
        processes.wait_ready(
            process, lambda: processes.listens(process, port) and _answers(url, context), "ready"
        )


def _issue_servers(authority: Authority, address: str, pki: Path) -> None:
    names = [address, LOOPBACK, API_SERVICE_ADDRESS, "localhost", "kubernetes"]
    names += ["kubernetes.default", "kubernetes.default.svc"]
    names += ["kubernetes.default.svc.cluster.local"]
    authority.issue("kube-apiserver", names=list(dict.fromkeys(names))).write(pki, "apiserver")
    authority.issue("kubelet-client", "system:masters").write(pki, "kubelet-client")
    authority.issue("admin", "system:masters").write(pki, "admin")


def _client_context(instance: Instance) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # managers sign themselves
    context.load_cert_chain(instance.pki / "admin.crt", instance.pki / "admin.key")
    return context


def _answers(url: str, context: ssl.SSLContext) -> bool:
    try:
        with urllib.request.urlopen(url, context=context, timeout=ANSWER_SECONDS_MAX) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _free_ports(address: str) -> Ports:
    hosts = (LOOPBACK, LOOPBACK, address, LOOPBACK, LOOPBACK)
    etcd, peer, api, manager, scheduler = find_free_ports(hosts)
    return Ports(
        etcd=etcd,
        etcd_peer=peer,
        api_server=api,
        controller_manager=manager,
        scheduler=scheduler,
    )
