"""A control plane without nodes, one operator for the session, and a namespace for each test."""

import secrets
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from operators import Operator, eventually, operating
from puppets import Puppets

from cluster.commands import Options
from cluster.errors import CannotRunHereError
from cluster.kubectl import Kubectl
from cluster.local import Shape
from cluster.providers import Cluster, open_cluster
from runs import build_run, install_crds

RUNTIME = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "ClusterRolloutRuntime",
    "metadata": {"name": "default"},
    "spec": {},
}
STORAGE = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": "standard",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": "kubernetes.io/no-provisioner",
    "volumeBindingMode": "WaitForFirstConsumer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A namespace with an operator that watches it."""

    kubectl: Kubectl
    puppets: Puppets
    operator: Operator

    def run(self, name: str = "arithmetic") -> dict[str, Any]:
        return self.kubectl.get("rolloutrun", name)

    def apply(self, name: str = "arithmetic", spec: dict[str, Any] | None = None) -> None:
        self.kubectl.apply(build_run(name, spec))

    def patch(self, spec: dict[str, Any], name: str = "arithmetic") -> None:
        import json

        body = json.dumps({"spec": spec})
        self.kubectl("patch", "rolloutrun", name, "--type=merge", "-p", body)

    def report(self, progress: dict[str, Any], name: str = "arithmetic") -> None:
        """Write progress as the coordinator would."""
        import json

        body = json.dumps({"status": {"progress": progress}})
        self.kubectl(
            "patch", "rolloutrun", name, "--subresource=status", "--type=merge", "-p", body
        )

    def condition(self, kind: str, name: str = "arithmetic") -> dict[str, Any]:
        found = self.run(name).get("status", {}).get("conditions", ())
        return next((one for one in found if one["type"] == kind), {})

    def wait_for(self, kind: str, status: str, reason: str = "", name: str = "arithmetic") -> Any:
        def there() -> Any:
            one = self.condition(kind, name)
            met = one.get("status") == status and reason in {"", one.get("reason")}
            return one if met else None

        what = f"{kind} of {name} did not become {status} {reason}"
        try:
            return eventually(there, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; status: {self.run(name).get('status')}") from error

    def replicas(self) -> dict[str, int]:
        found = self.kubectl.get("statefulsets")["items"]
        return {one["metadata"]["name"]: one["spec"]["replicas"] for one in found}

    def pod_uids(self, role: str) -> set[str]:
        pods = self.kubectl.get("pods", "-l", f"rollout.dev/role={role}")["items"]
        return {one["metadata"]["uid"] for one in pods}


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """An API server with our kinds, a runtime and a StorageClass; no nodes."""
    try:
        opened = open_cluster(Shape(fake_nodes=0, options=Options(audit="Metadata")))
        cluster = opened.__enter__()
    except CannotRunHereError as error:
        pytest.skip(f"cannot run here: {error}")
    try:
        install_crds(cluster.kubectl)
        cluster.kubectl.apply(RUNTIME, STORAGE)
        yield cluster
    finally:
        opened.__exit__(None, None, None)


@pytest.fixture(scope="session")
def operator(
    control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    log = tmp_path_factory.mktemp("operator") / "log"
    with operating(control_plane.kubectl.kubeconfig, free_port(), log) as process:
        yield process


@pytest.fixture
def bare(control_plane: Cluster) -> Iterator[Kubectl]:
    """A namespace; nobody operates."""
    kubectl = control_plane.kubectl
    name = f"test-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    yield replace(kubectl, namespace=name)
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def puppets(bare: Kubectl) -> Iterator[Puppets]:
    api = client.CoreV1Api(config.new_client_from_config(str(bare.kubeconfig)))
    playing = Puppets(api=api, namespace=bare.namespace)
    playing.start()
    yield playing
    playing.stop()


@pytest.fixture
def world(bare: Kubectl, puppets: Puppets, operator: Operator) -> World:
    return World(kubectl=bare, puppets=puppets, operator=operator)
