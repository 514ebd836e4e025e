"""The chart's Deployments as processes of this machine: what nodes would run, behind the chart's own Service and rights.

Pods of the release are puppets with this machine's address, so that the API server comes to the webhook by its Service and believes
its certificate. What is in the Deployments, in the Secrets and in the configuration is Helm's and the API server's.
"""

import base64
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cluster.control.ports import LOOPBACK, find_free_ports
from cluster.kubectl import Kubectl
from waiting import wait_until
from webhooks import fetch, process, write_kubeconfig

SECRET = "rollout-webhook-tls"
OPERATOR, WEBHOOK, CERTIFICATES = "rollout-operator", "rollout-webhook", "rollout-certificates"
NOWHERE = ("192.0.2.1", 9)
"""Of a block for documentation: nobody is called, the kernel says which address it would call from."""


def machine_address() -> str:
    """An address of this machine that is not loopback, which no Service may lead to.

    Raises:
        OSError: it has none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(NOWHERE)
        return probe.getsockname()[0]


@dataclass(slots=True, kw_only=True)
class Processes:
    """Operator, webhook and certificates of the release in `system`; the webhook listens at `address`."""

    system: Kubectl
    scratch: Path
    address: str
    _running: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        """Start what the Deployments say now, and wait until each is ready."""
        self._start(CERTIFICATES)
        data = wait_until(self._certificate, "the webhook has a certificate")
        folder = self.scratch / "mounted"
        folder.mkdir(exist_ok=True)
        for name in ("tls.crt", "tls.key"):
            (folder / name).write_bytes(base64.b64decode(data[name]))
        listens = {
            "ROLLOUT_WEBHOOK_HOST": self.address,
            "ROLLOUT_WEBHOOK_CERTIFICATES": str(folder),
        }
        self._start(WEBHOOK, **listens)
        self._start(OPERATOR, ROLLOUT_IDENTITY="the-operator")

    def stop(self) -> None:
        """End them, the last one first."""
        self._running.close()

    def restart(self) -> None:
        """As Deployments do with new settings."""
        self.stop()
        self.start()

    def _certificate(self) -> dict[str, str]:
        return self.system.get("secret", SECRET).get("data") or {}

    def _start(self, name: str, **more: str) -> None:
        pod = self.system.get("deployment", name)["spec"]["template"]["spec"]
        [container] = pod["containers"]
        told = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        host = more.get(
            "ROLLOUT_WEBHOOK_HOST", LOOPBACK
        )  # it answers there what it is asked of its health, too
        [port] = find_free_ports([host])
        account = pod["serviceAccountName"]
        mine = {
            "KUBECONFIG": str(write_kubeconfig(self.system, account, self.scratch)),
            "ROLLOUT_OPERATOR_NAMESPACE": self.system.namespace,
            "ROLLOUT_HEALTH_PORT": str(port),
        }
        module = container["command"][-1]
        started = self._running.enter_context(process(module, {**told, **mine, **more}))
        health = f"http://{host}:{port}/readyz"

        def ready() -> bool:
            assert started.poll() is None, f"{name} ended with {started.returncode}"
            return fetch(health)[0] == 200

        wait_until(ready, f"{name} is ready")


@contextmanager
def processes(system: Kubectl, scratch: Path, address: str) -> Iterator[Processes]:
    """None is started yet; those that were are ended with the block."""
    made = Processes(system=system, scratch=scratch, address=address)
    try:
        yield made
    finally:
        made.stop()
