"""The control plane of the operator's benchmark: users without privileges in the API server's queues,
namespaces, kinds, and the audit log."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "e2e"))

from operator_audit import Tail

from cluster import build, pins
from cluster.commands import Options
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster, Shape, running
from runs import RUNTIME, STORAGE, install_crds

CONTROLLERS = "*,-statefulset,-job"
AUDIT_MEGABYTES = 8000
SPACE = "bench"
RIVALS = {
    "jobset": "config/components/crd/bases",
    "lws": "config/crd/bases",
    "kuberay": "config/crd/bases",
}
OPTIONS = Options(
    audit="Metadata",
    controllers=CONTROLLERS,
    api_server_flags=(f"--audit-log-maxsize={AUDIT_MEGABYTES}",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """A running control plane without nodes."""

    cluster: LocalCluster

    @property
    def kubectl(self) -> Kubectl:
        """As administrator."""
        return self.cluster.kubectl

    @property
    def folder(self) -> Path:
        """For files of the contenders; goes with the cluster."""
        return self.cluster.instance.root

    def kubeconfig(self, name: str) -> Path:
        """A user like any service account: all rights, and no priority in the API server's queues."""
        path = self.folder / f"{name}.kubeconfig"
        if not path.exists():
            self.kubectl.apply(_rights(name))
            made = self.cluster.control_plane.kubeconfig(user_of(name), "system:serviceaccounts")
            path.write_text(made)
        return path

    def make_namespace(self, name: str) -> str:
        """A namespace."""
        self.kubectl("create", "namespace", name)
        return name

    def tail(self) -> Tail:
        """The audit log from here on."""
        return Tail(self.cluster.instance.audit_log)


def user_of(name: str) -> str:
    """A contender's name in the audit log."""
    return f"system:serviceaccount:{SPACE}:{name}"


@contextmanager
def open_plane(rivals: Iterable[str]) -> Iterator[Plane]:
    """Start it, with the kinds of ours and of these others."""
    wanted = [name for name in RIVALS if name in rivals]
    build.ensure(pins.RIVALS if wanted else ())
    with running(Shape(fake_nodes=0, options=OPTIONS)) as cluster:
        plane = Plane(cluster=cluster)
        plane.make_namespace(SPACE)
        install_crds(plane.kubectl)
        for name in wanted:
            files = str(build.folder(name) / RIVALS[name])
            plane.kubectl("apply", "--server-side", "-f", files)
        plane.kubectl.apply(STORAGE, RUNTIME)
        yield plane


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def number(name: str, default: int) -> int:
    """A size from the environment."""
    return int(os.environ.get(name, default))


def write_json(path: Path, document: Any) -> Path:
    """A file for a contender."""
    path.write_text(json.dumps(document))
    return path


def _rights(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"bench-{name}"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [
            {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user_of(name)}
        ],
    }
