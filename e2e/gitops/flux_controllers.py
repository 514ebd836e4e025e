"""Flux's source-controller and kustomize-controller as processes of this machine, and what they say of their objects.

They act as the administrator, as Flux installs its kustomize-controller (cluster-admin). helm-controller is in no module
proxy and does not run here.
"""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import build, pins
from cluster.control import processes
from cluster.control.ports import LOOPBACK, find_free_ports
from cluster.errors import ClusterError
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster
from waiting import wait_until

NAMESPACE = "flux-system"
ASK = "reconcile.fluxcd.io/requestedAt"
CANCELS = "--feature-gates=CancelHealthCheckOnNewRevision=true"
"""Without it a commit waits until the stage has waited: as long as its runs train."""
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Flux:
    """Both controllers at work; `kubectl` is in the namespace of their objects."""

    cluster: LocalCluster
    kubectl: Kubectl

    def status(self, kind: str, name: str) -> dict[str, Any]:
        """Empty while there is none."""
        try:
            return self.kubectl.get(kind, name).get("status", {})
        except ClusterError as error:
            if "NotFound" in str(error):
                return {}
            raise

    def condition(self, kind: str, name: str, wanted: str = "Ready") -> dict[str, Any]:
        found = self.status(kind, name).get("conditions", ())
        return next((one for one in found if one["type"] == wanted), {})

    def stage(self, name: str) -> tuple[str, str, str]:
        """Status and reason of a Kustomization's `Ready`, and the revision that was tried last."""
        ready = self.condition("kustomization", name)
        tried = self.status("kustomization", name).get("lastAttemptedRevision", "")
        return ready.get("status", ""), ready.get("reason", ""), tried

    def writes(self) -> list[tuple[str, str, str]]:
        """What kustomize-controller has written so far: the stage, the object, and what became of it."""
        log = Path(self.cluster.instance.processes()["kustomize-controller"].log)
        lines = (json.loads(one) for one in log.read_text().splitlines() if one.startswith("{"))
        applied = [one for one in lines if one.get("msg") == "server-side apply completed"]
        return [
            (one["name"], written, action)
            for one in applied
            for written, action in one["output"].items()
            if action != "unchanged"
        ]

    def events(self, name: str) -> list[str]:
        """What was said of a Kustomization; of many in a short time the API's own client keeps back some."""
        found = self.kubectl.get("events")["items"]
        mine = (one for one in found if one["involvedObject"]["name"] == name)
        return [one["message"] for one in mine if one["involvedObject"]["kind"] == "Kustomization"]

    def ask(self, kind: str, name: str, seconds: float = 180.0) -> None:
        """What `flux reconcile` does: until the controller has looked at it from beginning to end."""
        mark = str(time.time_ns())
        self.kubectl.merge(kind, name, {"metadata": {"annotations": {ASK: mark}}})

        def handled() -> bool:
            return self.status(kind, name).get("lastHandledReconcileAt") == mark

        self.until(handled, f"a look at {kind}/{name}", seconds)

    def until(self, holds: Callable[[], Any], what: str, seconds: float) -> Any:
        try:
            return wait_until(holds, what, seconds, every=LOOK_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None

    def describe(self) -> str:
        """Everything that helps to understand a failure."""
        found = self.kubectl.get("kustomizations,gitrepositories,ocirepositories")["items"]
        said = [f"{one['metadata']['name']}: {json.dumps(one.get('status', {}))}" for one in found]
        living = self.cluster.instance.processes()
        return "\n".join([*said, *(f"-- {name}\n{living[name].tail()}" for name in pins.FLUX)])


@contextmanager
def reconciling(cluster: LocalCluster, scratch: Path, kubectl: Kubectl) -> Iterator[Flux]:
    """Flux installed and at work for a block. Raises BuildError, StartError."""
    build.ensure(pins.FLUX)
    everywhere = Kubectl(
        binary=kubectl.binary, kubeconfig=cluster.instance.kubeconfig, namespace=""
    )
    definitions = [
        part for name in pins.FLUX for part in ("-f", str(build.folder(name) / "config/crd/bases"))
    ]
    everywhere("apply", "--server-side", *definitions)
    kinds = ("gitrepositories.source", "kustomizations.kustomize")
    everywhere.wait(
        "--for=condition=Established", *(f"crd/{one}.toolkit.fluxcd.io" for one in kinds)
    )
    everywhere.make_namespace(NAMESPACE)
    try:
        _start_source(cluster, scratch)
        _start(cluster, "kustomize-controller", CANCELS)
        yield Flux(cluster=cluster, kubectl=kubectl)
    finally:
        started = cluster.instance.processes()
        for name in pins.FLUX:
            if name in started:
                started[name].stop()
        everywhere.unmake_namespace(NAMESPACE)
        everywhere("delete", "--wait=false", *definitions)


def _start_source(cluster: LocalCluster, scratch: Path) -> None:
    """It keeps what it fetched in a folder, and serves it to the other one."""
    (port,) = find_free_ports([LOOPBACK])
    folder = scratch / "artifacts"
    folder.mkdir()
    address = f"{LOOPBACK}:{port}"
    served = (f"--storage-addr={address}", f"--storage-adv-addr={address}")
    _start(cluster, "source-controller", f"--storage-path={folder}", *served)


def _start(cluster: LocalCluster, name: str, *words: str) -> None:
    metrics, health = find_free_ports([LOOPBACK, LOOPBACK])
    bound = (f"--metrics-addr={LOOPBACK}:{metrics}", f"--health-addr={LOOPBACK}:{health}")
    environment = {
        "KUBECONFIG": str(cluster.instance.kubeconfig),
        "RUNTIME_NAMESPACE": NAMESPACE,
    }
    command = [str(build.path(name)), "--watch-all-namespaces", *bound, *words]
    process = cluster.instance.start(name, command, environment)
    ready = f"http://{LOOPBACK}:{health}/readyz"
    processes.wait_ready(process, lambda: _answers(ready), "ready")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # short: asked again
            return answer.status == 200
    except OSError:
        return False
