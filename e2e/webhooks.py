"""The webhook and the rotation of its certificate as processes of this machine, beside an API server."""

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.control.ports import LOOPBACK, find_free_ports
from cluster.kubectl import Kubectl
from waiting import wait_until

SECRET = "webhook-tls"
ROTATION = "certificates"


class Balancer:
    """What a Service does: new connections go to `backend`, those that are open stay where they are."""

    def __init__(self, backend: int) -> None:
        self.backend = backend
        self._listening = socket.create_server((LOOPBACK, 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:  # closed
                return
            try:
                far = socket.create_connection((LOOPBACK, self.backend), timeout=60)
            except OSError:  # nobody there: the caller sees a closed connection
                near.close()
                continue
            far.settimeout(None)
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
    except OSError:  # the other direction closed both
        pass
    finally:
        for one in (source, target):
            with contextlib.suppress(OSError):  # closed already
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """The process that serves, how another is started, and what both read."""

    kubectl: Kubectl
    folder: Path
    configuration: str
    health: str
    environment: dict[str, str]
    balancer: Balancer
    first: subprocess.Popen[bytes]

    def mount(self) -> None:
        """What the kubelet does: put the Secret's keys into files."""
        for name in ("tls.crt", "tls.key"):
            value = self.kubectl.get("secret", SECRET).get("data", {}).get(name, "")
            if value:
                (self.folder / name).write_bytes(base64.b64decode(value))

    def ready(self) -> tuple[int, str]:
        """Status and text of /readyz."""
        return fetch(f"{self.health}/readyz")


def fetch(url: str) -> tuple[int, str]:
    """Status and text; 0 while nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


@contextmanager
def process(module: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m module`, ended with TERM, and with KILL when that takes too long."""
    started = subprocess.Popen([sys.executable, "-m", module], env=os.environ | environment)
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


@contextmanager
def serving(kubectl: Kubectl, scratch: Path) -> Iterator[Webhook]:
    """Rotation and webhook, each as a service account of its own with the rights of the chart."""
    review, health, rotation_health = find_free_ports([LOOPBACK] * 3)
    name = f"{kubectl.namespace}-webhook"
    folder = scratch / "mounted"
    folder.mkdir()
    balancer = Balancer(review)
    kubectl.apply(*_objects(kubectl.namespace, name, balancer.port))
    rotation = {
        "KUBECONFIG": str(write_kubeconfig(kubectl, ROTATION, scratch)),
        "ROLLOUT_OPERATOR_NAMESPACE": kubectl.namespace,
        "ROLLOUT_WEBHOOK_SECRET": SECRET,
        "ROLLOUT_WEBHOOK_CONFIGURATION": name,
        "ROLLOUT_WEBHOOK_NAMES": "localhost",
        "ROLLOUT_HEALTH_PORT": str(rotation_health),
    }
    webhook = {
        "KUBECONFIG": str(write_kubeconfig(kubectl, "webhook", scratch)),
        "ROLLOUT_WEBHOOK_HOST": LOOPBACK,
        "ROLLOUT_WEBHOOK_PORT": str(review),
        "ROLLOUT_WEBHOOK_CERTIFICATES": str(folder),
        "ROLLOUT_HEALTH_PORT": str(health),
    }
    try:
        with (
            process("rollout_operator.webhook", webhook) as first,
            process("rollout_operator.rotation", rotation),
        ):
            ready = f"http://{LOOPBACK}:{rotation_health}/readyz"
            wait_until(lambda: fetch(ready)[0] == 200, "the rotation is ready")
            yield Webhook(
                kubectl=kubectl,
                folder=folder,
                configuration=name,
                health=f"http://{LOOPBACK}:{health}",
                environment=webhook,
                balancer=balancer,
                first=first,
            )
    finally:
        balancer.close()
        kubectl("delete", "validatingwebhookconfiguration", name, "--ignore-not-found")


def write_kubeconfig(kubectl: Kubectl, account: str, scratch: Path) -> Path:
    """A kubeconfig with a token of a service account."""
    document = yaml.safe_load(kubectl.kubeconfig.read_text())
    token = kubectl("create", "token", account, "--duration=1h").strip()
    document["users"] = [
        {"name": user["name"], "user": {"token": token}} for user in document["users"]
    ]
    path = scratch / f"{account}.kubeconfig"
    path.write_text(json.dumps(document))
    return path


def _objects(namespace: str, name: str, port: int) -> list[dict[str, Any]]:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "type": "Opaque"}
    accounts = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}
        for account in (ROTATION, "webhook")
    ]
    may_secret = {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": [SECRET],
        "verbs": ["get", "patch"],
    }
    may_configuration = {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["validatingwebhookconfigurations"],
        "resourceNames": [name],
        "verbs": ["get", "patch"],
    }
    return [
        *accounts,
        secret,
        *_role("Role", ROTATION, namespace, may_secret),
        *_role("ClusterRole", name, namespace, may_configuration),
        _configuration(name, port),
    ]


def _role(kind: str, name: str, namespace: str, rule: dict[str, Any]) -> list[dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": ROTATION, "namespace": namespace}
    return [
        {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": name}, "rules": [rule]},
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": [subject],
        },
    ]


def _configuration(name: str, port: int) -> dict[str, Any]:
    """As the chart has it, but by URL: the API server runs on this machine."""
    webhook = {
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "matchPolicy": "Equivalent",
        "timeoutSeconds": 5,
        "clientConfig": {"url": f"https://localhost:{port}/validate"},
        "matchConditions": [
            {
                "name": "something-new-is-said",
                "expression": "request.operation != 'UPDATE' || object.spec != oldObject.spec",
            },
            {"name": "not-being-deleted", "expression": "!has(object.metadata.deletionTimestamp)"},
        ],
    }
    rule = {"apiGroups": ["rollout.dev"], "apiVersions": ["v1alpha1"], "scope": "Namespaced"}
    rule["operations"] = ["CREATE", "UPDATE"]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            webhook
            | {
                "name": "runs.rollout.dev",
                "failurePolicy": "Fail",
                "rules": [rule | {"resources": ["rolloutruns"]}],
            },
            webhook
            | {
                "name": "others.rollout.dev",
                "failurePolicy": "Ignore",
                "rules": [
                    rule | {"resources": ["rolloutsnapshots", "rolloutendpoints", "rolloutsweeps"]}
                ],
            },
        ],
    }
